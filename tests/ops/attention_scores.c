/* Soft caps, slopes, sinks and biases, held to attention without them over tensors that have one
 * feature or one key more. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

#define HEADS 2
#define QUERIES 5
#define KEYS 37
#define SIZE 3
#define ROOM (HEADS * (KEYS + 1) * (SIZE + 2))

static double number(int seed, int i)
{
    return sin(seed * 1.3 + 0.7 * i * (i % 11));
}

/* [1, HEADS, positions, SIZE + more], in which the features after SIZE are 0. */
static cup_tensor *filled(cup_context *c, int seed, int positions, int more)
{
    double values[ROOM] = {0};
    const int64_t shape[] = {1, HEADS, positions, SIZE + more};
    for (int i = 0; i < HEADS * positions; i++)
        for (int d = 0; d < SIZE; d++)
            values[i * (SIZE + more) + d] =
                number(seed, i / positions * KEYS * SIZE + i % positions * SIZE + d);
    cup_tensor *t = cup_tensor_from(c, CUP_F64, 4, shape, values);
    return cup_cast(c, t, CUP_F64);
}

static void expect_near(cup_tensor *got, cup_tensor *want, double most)
{
    EXPECT(got && want && got->count == want->count);
    for (int64_t i = 0; got && want && i < got->count; i++)
        EXPECT_NEAR(cup__load(got, cup__offset_of(got, i)),
                    cup__load(want, cup__offset_of(want, i)), most);
}

/* Slopes are a feature more: -slope (position - key), which is the distance under a causal mask. */
static void expect_slopes(cup_dtype dtype, double most)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const double slopes[] = {0.25, 0.0625};
    cup_tensor *q = filled(c, 1, QUERIES, 0), *k = filled(c, 2, KEYS, 0),
               *v = filled(c, 3, KEYS, 0);
    cup_tensor *wide_q = filled(c, 1, QUERIES, 2), *wide_k = filled(c, 2, KEYS, 2);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < QUERIES; i++) {
            double *row = (double *)wide_q->data + (h * QUERIES + i) * (SIZE + 2) + SIZE;
            row[0] = 1;
            row[1] = i + KEYS - QUERIES;
        }
        for (int j = 0; j < KEYS; j++) {
            double *row = (double *)wide_k->data + (h * KEYS + j) * (SIZE + 2) + SIZE;
            row[0] = slopes[h] * j;
            row[1] = -slopes[h];
        }
    }
    cup_tensor *s = cup_cast(c, cup_tensor_from(c, CUP_F64, 1, (int64_t[]){HEADS}, slopes),
                             dtype == CUP_F64 ? CUP_F64 : CUP_F32);
    cup_tensor *wide_v = filled(c, 3, KEYS, 2);
    cup_tensor *want = cup_attention(
        c, wide_q, wide_k, wide_v, CUP_OPTIONS(cup_attention_options, .causal = true, .scale = 1));
    want = cup_slice(c, want, (int64_t[4]){0}, 4, (int64_t[]){1, HEADS, QUERIES, SIZE}, 4);
    cup_tensor *got =
        cup_attention(c, cup_cast(c, q, dtype), cup_cast(c, k, dtype), cup_cast(c, v, dtype),
                      CUP_OPTIONS(cup_attention_options, .causal = true, .scale = 1, .slopes = s));
    expect_near(got, want, most);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(attention_slopes_are_a_feature_more)
{
    expect_slopes(CUP_F64, 1e-13);
    expect_slopes(CUP_F32, 1e-5);
}

/* A sink is a key more, before all others, of which the queries see one feature alone, and whose
 * value is 0. */
static void expect_sinks(bool nothing_else, cup_dtype dtype, double most)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const double sinks[] = {1.5, -0.75};
    int keys = nothing_else ? 0 : KEYS;
    cup_tensor *q = filled(c, 1, QUERIES, 0), *k = filled(c, 2, keys, 0),
               *v = filled(c, 3, keys, 0);
    cup_tensor *wide_q = filled(c, 1, QUERIES, 1), *wide_k = filled(c, 2, keys + 1, 1);
    cup_tensor *wide_v = filled(c, 3, keys + 1, 1);
    for (int i = 0; i < HEADS * QUERIES; i++)
        ((double *)wide_q->data)[i * (SIZE + 1) + SIZE] = 1;
    for (int h = 0; h < HEADS; h++) {
        double *key = (double *)wide_k->data + (h * (keys + 1) + keys) * (SIZE + 1);
        memset(key, 0, SIZE * sizeof *key);
        key[SIZE] = sinks[h];
        memset((double *)wide_v->data + (h * (keys + 1) + keys) * (SIZE + 1), 0,
               (SIZE + 1) * sizeof *key);
    }
    cup_tensor *s = cup_cast(c, cup_tensor_from(c, CUP_F64, 1, (int64_t[]){HEADS}, sinks),
                             dtype == CUP_F64 ? CUP_F64 : CUP_F32);
    cup_tensor *want =
        cup_attention(c, wide_q, wide_k, wide_v, CUP_OPTIONS(cup_attention_options, .scale = 1));
    want = cup_slice(c, want, (int64_t[4]){0}, 4, (int64_t[]){1, HEADS, QUERIES, SIZE}, 4);
    cup_tensor *got =
        cup_attention(c, cup_cast(c, q, dtype), cup_cast(c, k, dtype), cup_cast(c, v, dtype),
                      CUP_OPTIONS(cup_attention_options, .scale = 1, .sinks = s));
    expect_near(got, want, most);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(attention_sinks_are_a_key_more)
{
    expect_sinks(false, CUP_F64, 1e-13);
    expect_sinks(false, CUP_F32, 1e-5);
    expect_sinks(true, CUP_F64, 0);
    expect_sinks(true, CUP_F32, 0);
}

/* Two keys, with scores of 3 and 0: the first has a weight of 1 / (1 + e^-(c tanh(3 / c))). */
TEST(attention_soft_cap_is_a_tanh)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t one[] = {1, 1, 1, 1}, two[] = {1, 1, 2, 1};
    for (int wide = 0; wide < 2; wide++) {
        cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
        cup_tensor *q = cup_cast(c, cup_tensor_from(c, CUP_F32, 4, one, (float[]){1.5f}), dtype);
        cup_tensor *k = cup_cast(c, cup_tensor_from(c, CUP_F32, 4, two, (float[]){1, 0}), dtype);
        cup_tensor *o = cup_attention(
            c, q, k, k, CUP_OPTIONS(cup_attention_options, .scale = 2, .soft_cap = 2));
        EXPECT_NEAR(cup__load(o, 0), 1 / (1 + exp(-2 * tanh(1.5))), wide ? 1e-14 : 1e-6);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

/* Slopes are a bias, and a causal mask is one of -infinity, for which rows that see nothing give 0
 * as well; gradients too. */
static cup_tensor *bias_of(cup_context *c, cup_dtype dtype, bool slopes)
{
    double values[HEADS * QUERIES * KEYS];
    for (int i = 0; i < HEADS * QUERIES * KEYS; i++) {
        int distance = i / KEYS % QUERIES + KEYS - QUERIES - i % KEYS;
        double slope = i / KEYS / QUERIES ? 0.0625 : 0.25;
        values[i] = slopes ? -slope * abs(distance) : distance < 0 ? -INFINITY : 0;
    }
    const int64_t shape[] = {1, HEADS, QUERIES, KEYS};
    return cup_cast(c, cup_tensor_from(c, CUP_F64, 4, shape, values), dtype);
}

static void expect_bias(cup_dtype dtype, bool slopes, double most)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const double numbers[] = {0.25, 0.0625};
    cup_tensor *in[2][3], *o[2], *bias = bias_of(c, dtype, slopes);
    cup_tensor *s = cup_cast(c, cup_tensor_from(c, CUP_F64, 1, (int64_t[]){HEADS}, numbers),
                             dtype == CUP_F64 ? CUP_F64 : CUP_F32);
    cup_require_grad(bias);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++) {
            in[k][i] = cup_cast(c, filled(c, i + 1, i ? KEYS : QUERIES, 0), dtype);
            in[k][i] = cup_copy(c, in[k][i]);
            cup_require_grad(in[k][i]);
        }
        cup_attention_options options = {.size = sizeof options, .soft_cap = 2};
        if (k)
            options.bias = bias;
        else if (slopes)
            options.slopes = s;
        else
            options.causal = true;
        o[k] = cup_attention(c, in[k][0], in[k][1], in[k][2], &options);
        cup_backward(c, cup_sum(c, cup_mul(c, o[k], in[0][0]), NULL, 0, false));
    }
    EXPECT_TEXT(cup_error_text(c), "");
    expect_near(o[1], o[0], most);
    for (int i = 1; i < 3; i++)
        expect_near(cup_grad(in[1][i]), cup_grad(in[0][i]), most);
    EXPECT(cup_grad(bias) && cup_grad(bias)->count == bias->count);
    cup_context_free(c);
}

TEST(attention_bias_is_slopes_or_a_mask)
{
    expect_bias(CUP_F64, true, 1e-13);
    expect_bias(CUP_F64, false, 1e-13);
    expect_bias(CUP_F32, true, 1e-5);
    expect_bias(CUP_F32, false, 1e-5);
}

TEST(attention_bias_may_hide_all)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int wide = 0; wide < 2; wide++) {
        cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
        cup_tensor *q = cup_cast(c, filled(c, 1, QUERIES, 0), dtype);
        cup_tensor *k = cup_cast(c, filled(c, 2, KEYS, 0), dtype);
        cup_tensor *bias = cup_full(c, dtype, 4, (int64_t[]){1, 1, 1, 1}, -INFINITY);
        cup_require_grad(q);
        cup_tensor *o = cup_attention(c, q, k, k, CUP_OPTIONS(cup_attention_options, .bias = bias));
        cup_backward(c, cup_sum(c, o, NULL, 0, false));
        EXPECT_TEXT(cup_error_text(c), "");
        for (int64_t i = 0; o && i < o->count; i++)
            EXPECT(cup__load(o, i) == 0 && cup__load(cup_grad(q), i) == 0);
    }
    cup_context_free(c);
}

static void expect_refused(const cup_attention_options *options, cup_status status,
                           const char *words)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_attention_options given = *options;
    const int64_t shape[] = {1, 2, 3, 4}, heads[] = {2}, other[] = {3};
    cup_tensor *q = cup_ones(c, CUP_F32, 4, shape);
    if (given.slopes)
        given.slopes = cup_ones(c, CUP_F32, 1, other);
    if (given.sinks)
        given.sinks = cup_ones(c, CUP_F16, 1, heads);
    if (given.bias)
        given.bias = cup_ones(c, CUP_F32, 4, (int64_t[]){1, 2, 3, 4});
    EXPECT(!cup_attention(c, q, q, q, &given));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

TEST(attention_scores_say_what_does_not_fit)
{
    cup_tensor given = {0};
    expect_refused(CUP_OPTIONS(cup_attention_options, .soft_cap = -1), CUP_ARGUMENT, "not -1");
    expect_refused(CUP_OPTIONS(cup_attention_options, .soft_cap = INFINITY), CUP_ARGUMENT,
                   "must be finite");
    expect_refused(CUP_OPTIONS(cup_attention_options, .slopes = &given), CUP_SHAPE,
                   "each of the 2 heads");
    expect_refused(CUP_OPTIONS(cup_attention_options, .sinks = &given), CUP_DTYPE, "in f32");
    expect_refused(CUP_OPTIONS(cup_attention_options, .bias = &given), CUP_SHAPE, "[1,2,3,3]");
}

/* One bias for all changes no probability, however large; 70 queries end within a tile of every
 * kernel, behind which nothing may count. */
static void expect_one_bias_is_none(const char *device, const char *impl, cup_dtype dtype)
{
    enum { POSITIONS = 70, WIDTH = 64 };
    const int64_t shape[] = {1, 1, POSITIONS, WIDTH}, one[] = {1, 1, 1, 1};
    float values[4][POSITIONS * WIDTH], got[2][3][POSITIONS * WIDTH];
    setenv("CUP_IMPL", impl, 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    unsetenv("CUP_IMPL");
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < POSITIONS * WIDTH; k++)
            values[i][k] = (float)((k * (7 + 4 * i) + k / WIDTH * 13) % 33 - 16) / 16;
    for (int biased = 0; biased < 2; biased++) {
        cup_tensor *in[4];
        for (int i = 0; i < 4; i++) {
            in[i] = cup_tensor_from(c, CUP_F32, 4, shape, values[i]);
            in[i] = cup_copy(c, cup_cast(c, in[i], dtype));
            cup_require_grad(in[i]);
        }
        cup_tensor *bias = cup_cast(c, cup_tensor_from(c, CUP_F32, 4, one, (float[]){192}), dtype);
        cup_tensor *o = cup_attention(
            c, in[0], in[1], in[2],
            CUP_OPTIONS(cup_attention_options, .bias = biased ? bias : NULL));
        cup_backward(c, cup_sum(c, cup_mul(c, o, in[3]), NULL, 0, false));
        for (int i = 0; i < 3; i++)
            cup_tensor_read(cup_cast(c, cup_grad(in[i]), CUP_F32), got[biased][i],
                            sizeof got[0][0]);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < POSITIONS * WIDTH; k++)
            if (!(fabsf(got[1][i][k] - got[0][i][k]) < 0.02f))
                test_fail(__FILE__, __LINE__, "%s, %s: gradient %d has %g for %g at %d", impl,
                          cup_dtype_name(dtype), i, (double)got[1][i][k], (double)got[0][i][k], k);
    cup_context_free(c);
}

TEST(attention_one_bias_for_all_is_none)
{
    expect_one_bias_is_none("cpu", "attention_grad=blocks", CUP_F32);
}

TEST(gpu_attention_one_bias_for_all_is_none)
{
    expect_one_bias_is_none("cuda", "attention_grad=flash", CUP_BF16);
    expect_one_bias_is_none("cuda", "attention_grad=flash_f32", CUP_F32);
    expect_one_bias_is_none("cuda", "attention_grad=hopper", CUP_BF16);
    expect_one_bias_is_none("cuda", "attention_grad=plain", CUP_F32);
}
