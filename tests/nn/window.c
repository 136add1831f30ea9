/* Attention in a window, of which a position is the last. bench/published.py holds whole models
 * with one to PyTorch's. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "nn/sharp.h"
#include "test.h"

#define LENGTH 24

static const cup_gpt_config windowed = {.size = sizeof(cup_gpt_config),
                                        .layers = 3,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .width = 16,
                                        .context = LENGTH,
                                        .vocabulary = WORDS,
                                        .positions = CUP_POSITIONS_ROTARY,
                                        .norm = CUP_NORM_KIND_RMSNORM,
                                        .mlp = CUP_MLP_KIND_SWIGLU,
                                        .window = 5,
                                        .window_from = 1};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
}

static void logits_of(cup_gpt *m, int64_t from, int64_t to, float (*out)[WORDS])
{
    EXPECT_INT(cup_tensor_read(cup_gpt_logits(m, sharp_tokens(m->context, 1, from, to)), out,
                               (size_t)(to - from) * sizeof *out),
               CUP_OK);
}

static bool near(const float *a, const float *b, double most)
{
    double worst = 0;
    for (int i = 0; i < WORDS; i++)
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst <= most;
}

/* The layer against the op with a bias that hides what the window does, in values and gradients. */
TEST(window_hides_what_stands_before_it)
{
    enum { T = 9, W = 8, WINDOW = 3 };
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", W, 2,
                                       CUP_OPTIONS(cup_attention_layer_options, .causal = true,
                                                   .window = WINDOW)),
               CUP_OK);
    float hidden[T][T], got[T * W], want[T * W];
    for (int q = 0; q < T; q++)
        for (int k = 0; k < T; k++)
            hidden[q][k] = k <= q - WINDOW ? -INFINITY : 0;
    cup_tensor *bias = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){1, 1, T, T}, hidden);
    for (int k = 0; k < 2; k++) {
        cup_tensor *x = cup_normal(c, CUP_F32, 3, (int64_t[]){2, T, W}, 0, 1);
        cup_tensor *other = cup_copy(c, x);
        cup_require_grad(x);
        cup_require_grad(other);
        cup_tensor *y = cup_attention_layer_call(&layer, x);
        cup_tensor *o = cup_qkv_attention(
            c, cup_linear_layer_call(&layer.qkv, other), 2,
            CUP_OPTIONS(cup_qkv_attention_options, .causal = true, .bias = bias));
        cup_tensor *z = cup_linear_layer_call(&layer.out, o);
        cup_tensor *squares = cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z));
        EXPECT_INT(cup_backward(c, cup_sum(c, squares, NULL, 0, false)), CUP_OK);
        cup_tensor *pairs[2][2] = {{y, z}, {cup_grad(x), cup_grad(other)}};
        for (int p = 0; p < 2; p++) {
            cup_tensor *first = cup_slice(c, pairs[p][0], (int64_t[]){0, 0, 0}, 3,
                                          (int64_t[]){1, T, W}, 3);
            EXPECT_INT(cup_tensor_read(cup_copy(c, first), got, sizeof got), CUP_OK);
            first = cup_slice(c, pairs[p][1], (int64_t[]){0, 0, 0}, 3, (int64_t[]){1, T, W}, 3);
            EXPECT_INT(cup_tensor_read(cup_copy(c, first), want, sizeof want), CUP_OK);
            for (int i = 0; i < T * W; i++)
                EXPECT_NEAR(got[i], want[i], 1e-5);
        }
    }
    cup_parameters_free(list);
    cup_context_free(c);
}

/* A block with a window tells the last token of nothing before it, the first block here of all. */
TEST(window_of_a_gpt_begins_with_a_block)
{
    static float all[LENGTH][WORDS], some[LENGTH][WORDS];
    cup_context *c = cpu();
    for (int from = 0; from < 2; from++) {
        cup_gpt_config config = windowed;
        config.layers = 1;
        config.window_from = from;
        cup_gpt *m = sharp_gpt(c, &config, 15, 0);
        logits_of(m, 0, LENGTH, all);
        logits_of(m, LENGTH - 5, LENGTH, some);
        EXPECT_INT(near(all[LENGTH - 1], some[4], 1e-4), !from);
        logits_of(m, LENGTH - 4, LENGTH, some);
        EXPECT(!near(all[LENGTH - 1], some[3], 1e-3));
        cup_gpt_free(m);
    }
    cup_context_free(c);
}

/* Texts read in pieces, token by token, and by a generator far beyond the window. */
TEST(window_is_kept_by_what_reads_token_by_token)
{
    static float all[LENGTH][WORDS], last[1][WORDS];
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &windowed, 15, 0);
    logits_of(m, 0, LENGTH, all);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
    for (int64_t at = 0, step = 7; at < LENGTH; at += step, step = step > 2 ? step - 2 : 1) {
        cup_tensor *y = cup_gpt_read(cache, sharp_tokens(c, 1, at, at + step));
        EXPECT_INT(cup_tensor_read(y, last, sizeof last), CUP_OK);
        EXPECT(near(*last, all[at + step - 1], 1e-4));
    }
    cup_tensor *position = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, (int64_t[]){9});
    EXPECT(!cup_gpt_read_at(cache, sharp_tokens(c, 1, 0, 1), position));
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "a window of 5 in keys of 24");
    cup_error_clear(c);
    cup_gpt_cache_free(cache);
    cup_generator *g = cup_generator_new(m, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t fed[LENGTH];
    for (int i = 0; i < LENGTH - 1; i++)
        fed[i] = sharp_token(0, i);
    EXPECT_INT(cup_generator_feed(g, fed, LENGTH - 1), CUP_OK);
    int best = 0;
    for (int i = 1; i < WORDS; i++)
        best = all[LENGTH - 2][i] > all[LENGTH - 2][best] ? i : best;
    EXPECT_INT(cup_generator_next(g), best);
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

/* Where the cache is no longer than the window there is nothing to hide. */
TEST(window_lets_short_texts_be_read_on_the_device)
{
    static float all[5][WORDS], last[1][WORDS];
    cup_context *c = cpu();
    cup_gpt *m = sharp_gpt(c, &windowed, 15, 0);
    logits_of(m, 0, 5, all);
    cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 5);
    for (int64_t i = 0; i < 5; i++) {
        cup_tensor *position = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, &i);
        cup_tensor *y = cup_gpt_read_at(cache, sharp_tokens(c, 1, i, i + 1), position);
        EXPECT_INT(cup_tensor_read(y, last, sizeof last), CUP_OK);
        EXPECT(near(*last, all[i], 1e-4));
    }
    cup_gpt_cache_free(cache);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(window_that_cannot_be_is_refused)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_attention_layer layer;
    EXPECT_INT(cup_attention_layer_new(&layer, list, "a", 8, 2,
                                       CUP_OPTIONS(cup_attention_layer_options, .window = 3)),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "of causal attention");
    cup_error_clear(c);
    cup_gpt_config config = windowed;
    config.window = -1;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    cup_error_clear(c);
    config.window = 0;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "window_from");
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_context_free(c);
}
