#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

static cup_tensor *filled(cup_context *c, const int64_t *shape, int seed, double size)
{
    cup_tensor *t = cup_tensor_new(c, CUP_F32, 4, shape);
    for (int64_t i = 0; t && i < t->count; i++)
        ((float *)t->data)[i] = (float)(size * sin(seed + 1.7 * (double)i * (double)(i % 13)));
    return t;
}

TEST(attention_result_joins_heads_as_a_view)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t shape[] = {2, 3, 5, 4}, joined[] = {2, 5, 12};
    cup_tensor *q = filled(c, shape, 1, 1);
    cup_tensor *o = cup_attention(c, q, q, q, CUP_OPTIONS(cup_attention_options, .causal = true));
    EXPECT(o && o->stride[0] == 60 && o->stride[1] == 4 && o->stride[2] == 12 && o->stride[3] == 1);
    EXPECT(o && !o->contiguous);
    cup_tensor *turned = o ? cup__tensor_view(o, &(cup__shape){CUP_F32, 4, {2, 5, 3, 4}},
                                              (int64_t[]){60, 12, 4, 1}, 0)
                           : NULL;
    cup_tensor *y = turned ? cup_reshape(c, turned, 3, joined) : NULL;
    EXPECT(y && o && y->data == o->data);
    cup_context_free(c);
}

TEST(attention_of_extreme_scores_is_finite)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t shape[] = {1, 2, 70, 8};
    cup_tensor *q = filled(c, shape, 1, 300), *k = filled(c, shape, 2, 300);
    cup_tensor *v = filled(c, shape, 3, 1);
    cup_require_grad(q);
    cup_require_grad(v);
    cup_tensor *o =
        cup_attention(c, q, k, v, CUP_OPTIONS(cup_attention_options, .causal = true, .scale = 1));
    cup_backward(c, cup_sum(c, o, NULL, 0, false));
    EXPECT(cup_error(c) == CUP_OK);
    for (int64_t i = 0; o && i < o->count; i++) {
        EXPECT(fabs(cup__load(o, i)) <= 1.0001);
        EXPECT(isfinite(cup__load(cup_grad(q), i)) && isfinite(cup__load(cup_grad(v), i)));
    }
    cup_context_free(c);
}

TEST(attention_of_a_query_that_sees_nothing_is_0)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t more[] = {1, 1, 40, 8}, less[] = {1, 1, 3, 8};
    cup_tensor *q = filled(c, more, 1, 1), *k = filled(c, less, 2, 1);
    cup_require_grad(q);
    cup_tensor *o = cup_attention(c, q, k, k, CUP_OPTIONS(cup_attention_options, .causal = true));
    cup_backward(c, cup_sum(c, o, NULL, 0, false));
    EXPECT(cup_error(c) == CUP_OK);
    for (int64_t i = 0; o && i < 37 * 8; i++)
        EXPECT(cup__load(o, i) == 0 && cup__load(cup_grad(q), i) == 0);
    EXPECT(o && cup__load(o, 37 * 8) != 0);
    cup_context_free(c);
}

/* Its one probability is 1 whatever the score, so nothing flows back to q and k: not even what
 * rounding leaves, which is no error of any size beside 0. */
static void expect_one_key_has_no_slope(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    cup_context *host = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(host);
        cup_context_free(c);
        test_skip("no GPU");
    }
    cup_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        int64_t shape[] = {1, i ? 1 : 2, i ? 1 : 66, 8};
        cup_tensor *one = filled(host, shape, i, 1);
        in[i] = cup_cast(c, cup_tensor_to(c, one), CUP_F64);
        cup_require_grad(in[i]);
    }
    cup_tensor *o = cup_attention(c, in[0], in[1], in[2], NULL);
    cup_backward(c, cup_sum(c, cup_mul(c, o, in[0]), NULL, 0, false));
    EXPECT_TEXT(cup_error_text(c), "");
    double dk[8];
    EXPECT_INT(cup_tensor_read(cup_grad(in[1]), dk, sizeof dk), CUP_OK);
    for (int i = 0; i < 8; i++)
        EXPECT(dk[i] == 0);
    cup_context_free(host);
    cup_context_free(c);
}

TEST(attention_one_key_has_no_slope)
{
    expect_one_key_has_no_slope("cpu");
}

TEST(gpu_attention_one_key_has_no_slope)
{
    expect_one_key_has_no_slope("cuda");
}

/* With many heads blocks take the next tile that is left, or the short last tiles of all heads at
 * the end. Who does makes no difference: each head has the bits that it has alone. */
static void expect_same_bits_alone(cup_context *c, int64_t length, bool causal)
{
    enum { HEADS = 96, MOST = 700 * 64 };
    static uint16_t together[HEADS * MOST], alone[MOST];
    const int64_t all[] = {1, HEADS, length, 64}, one[] = {1, 1, length, 64}, of_head = length * 64;
    const cup_attention_options options = {.size = sizeof options, .causal = causal};
    cup_tensor *in[3], *part[3];
    for (int i = 0; i < 3; i++)
        in[i] = cup_cast(c, cup_normal(c, CUP_F32, 4, all, 0, 1), CUP_BF16);
    for (int again = 0; again < 3; again++) {
        cup_tensor *o = cup_attention(c, in[0], in[1], in[2], &options);
        EXPECT_INT(cup_tensor_read(o, together, (size_t)(HEADS * of_head * 2)), CUP_OK);
        for (int h = again; h < HEADS; h += 19) {
            for (int i = 0; i < 3; i++)
                part[i] = cup_slice(c, in[i], (int64_t[]){0, h, 0, 0}, 4, one, 4);
            o = cup_attention(c, part[0], part[1], part[2], &options);
            EXPECT_INT(cup_tensor_read(o, alone, (size_t)(of_head * 2)), CUP_OK);
            EXPECT(memcmp(together + h * of_head, alone, (size_t)(of_head * 2)) == 0);
        }
    }
}

TEST(gpu_attention_in_turns_has_the_same_bits)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    expect_same_bits_alone(c, 700, true);
    expect_same_bits_alone(c, 450, true);
    expect_same_bits_alone(c, 450, false);
    cup_context_free(c);
}

TEST(attention_drops_the_share_it_is_asked_to)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    int64_t shape[] = {1, 1, 512, 1};
    cup_tensor *zero = filled(c, shape, 1, 0);
    float *one = zero ? zero->data : NULL;
    cup_tensor *v = filled(c, shape, 1, 0);
    for (int i = 0; one && v && i < 512; i++)
        ((float *)v->data)[i] = 1;
    double mean[2] = {0};
    for (int k = 0; k < 2; k++) {
        cup_tensor *o =
            cup_attention(c, zero, zero, v, CUP_OPTIONS(cup_attention_options, .dropout = 0.25));
        for (int i = 0; o && i < 512; i++)
            mean[k] += cup__load(o, i) / 512;
    }
    /* 262,144 draws: the standard deviation of the mean is 0.0011. */
    EXPECT(fabs(mean[0] - 1) < 0.006 && fabs(mean[1] - 1) < 0.006 && mean[0] != mean[1]);
    cup_context_free(c);
}

TEST(attention_does_not_depend_on_the_threads)
{
    int64_t shape[] = {1, 2, 200, 24};
    float result[2][2 * 200 * 24];
    for (int k = 0; k < 2; k++) {
        cup_context *c =
            cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = k ? 2 : 1));
        cup_tensor *q = filled(c, shape, 1, 1), *v = filled(c, shape, 3, 1);
        cup_tensor *o = cup_attention(
            c, q, v, v, CUP_OPTIONS(cup_attention_options, .causal = true, .dropout = 0.1));
        EXPECT(cup_tensor_read(o, result[k], sizeof result[k]) == CUP_OK);
        cup_context_free(c);
    }
    EXPECT(!memcmp(result[0], result[1], sizeof result[0]));
}

static void expect_words(const int64_t *q, const int64_t *k, double scale, double dropout,
                         const char *words)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = filled(c, q, 1, 1), *y = filled(c, k, 1, 1);
    EXPECT(!cup_attention(
        c, x, y, y,
        CUP_OPTIONS(cup_attention_options, .causal = true, .scale = scale, .dropout = dropout)));
    if (!strstr(cup_error_text(c), words))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", cup_error_text(c), words);
    cup_context_free(c);
}

TEST(attention_says_what_does_not_fit)
{
    const int64_t good[] = {2, 6, 5, 8}, batch[] = {3, 6, 5, 8}, size[] = {2, 6, 5, 4};
    const int64_t heads[] = {2, 4, 5, 8}, none[] = {2, 6, 5, 0};
    expect_words(good, batch, 0, 0, "agree in the batch");
    expect_words(good, size, 0, 0, "size of a head");
    expect_words(good, heads, 0, 0, "no multiple of the 4 heads");
    expect_words(none, none, 0, 0, "a size of at least 1");
    expect_words(good, good, INFINITY, 0, "scale must be finite");
    expect_words(good, good, 0, 1, "below 1");
    expect_words(good, good, 0, NAN, "below 1");
}

/* With queries of zeros all that a query sees counts alike: its result is the mean of the values of
 * the keys from one end of its window to the other, and 0 where there are none. Five keys with the
 * values 1, 2, 4, 8, 16; the last query stands at the last key. */
static void expect_means(int64_t queries, const cup_attention_options *options, const float *want)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t of_queries[] = {1, 1, queries, 1}, of_keys[] = {1, 1, 5, 1};
    const float values[] = {1, 2, 4, 8, 16};
    float got[8];
    cup_tensor *q = cup_zeros(c, CUP_F32, 4, of_queries);
    cup_tensor *v = cup_tensor_from(c, CUP_F32, 4, of_keys, values);
    cup_tensor *o = cup_attention(c, q, v, v, options);
    EXPECT_INT(cup_tensor_read(o, got, (size_t)queries * sizeof *got), CUP_OK);
    for (int64_t i = 0; i < queries; i++)
        EXPECT_NEAR(got[i], want[i], 1e-6);
    cup_context_free(c);
}

TEST(attention_sees_through_a_window)
{
    expect_means(5, CUP_OPTIONS(cup_attention_options, .causal = true, .window_left = 2),
                 (const float[]){1, 1.5f, 3, 6, 12});
    expect_means(5, CUP_OPTIONS(cup_attention_options, .window_left = 1, .window_right = 1),
                 (const float[]){1, 2, 4, 8, 16});
    expect_means(5, CUP_OPTIONS(cup_attention_options, .window_left = 2, .window_right = 2),
                 (const float[]){1.5f, 7 / 3.0f, 14 / 3.0f, 28 / 3.0f, 12});
    expect_means(2, CUP_OPTIONS(cup_attention_options, .window_left = 3),
                 (const float[]){30 / 4.0f, 28 / 3.0f});
    expect_means(7, CUP_OPTIONS(cup_attention_options, .window_right = 2),
                 (const float[]){0, 1, 1.5f, 7 / 3.0f, 15 / 4.0f, 31 / 5.0f, 31 / 5.0f});
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t shape[] = {1, 1, 2, 1};
    cup_tensor *q = cup_zeros(c, CUP_F32, 4, shape);
    EXPECT(!cup_attention(c, q, q, q, CUP_OPTIONS(cup_attention_options, .window_left = -1)));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "not -1");
    cup_context_free(c);
}
