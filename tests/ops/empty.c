/* Calls with a side of 0: every implementation of every op says that it does not take them, or does
 * nothing; and products without terms are zero, with what comes after the sum. */
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "dispatch/op.h"
#include "prof/check.h"

/* Whether one of the sides in "2x0 3x4" is 0. */
static bool has_empty(const char *shapes)
{
    for (const char *at = shapes; *at; at++)
        if (*at == '0' && (at == shapes || at[-1] == ' ' || at[-1] == 'x') &&
            (at[1] == 0 || at[1] == ' ' || at[1] == 'x'))
            return true;
    return false;
}

static void run_impls(cup_context *c, const cup__row *row, const cup__sample *sample,
                      cup_tensor **in, int count)
{
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++) {
        cup__call call;
        if (impl->place != CUP__CUDA ||
            cup__call_begin(&call, c, row, in, count, sample->attributes) != CUP_OK)
            continue;
        call.saving = true;
        call.out_count = row->results_count;
        EXPECT_INT(cup__call_allocate(&call), CUP_OK);
        if (!impl->refuses || !impl->refuses(&call))
            EXPECT_INT(cup__call_run(&call, impl), CUP_OK);
    }
}

static void run_samples(cup_context *c, const cup__row *row)
{
    uint32_t dtypes = cup__check_dtypes(row);
    for (const cup__sample *s = row->op->samples; s && s->shapes; s++)
        for (int dtype = 0; dtype < 32 && has_empty(s->shapes); dtype++) {
            cup_tensor *in[64];
            if (!(dtypes >> dtype & 1))
                continue;
            cup_scope_open(c);
            int count = cup__sample_inputs(c, row, s, (cup_dtype)dtype, (cup_dtype)dtype,
                                           CUP__ROW_MAJOR, 0, in, 64);
            EXPECT_TEXT(cup_error_text(c), "");
            if (!row->op->view)
                run_impls(c, row, s, in, count);
            cup_scope_close(c);
            EXPECT_TEXT(cup_error_text(c), "");
        }
}

TEST_LIMITED(empty_calls_on_cards, 120)
{
    static const char *const archs[] = {"sm_75", "sm_80", "sm_90a"};
    for (int i = 0; i < 3; i++) {
        cup_context *c = cup__context_dry(archs[i]);
        for (const cup__row *row = cup__rows; row->name; row++)
            run_samples(c, row);
        cup_context_free(c);
    }
}

static cup_tensor *ones(cup_context *c, int ndim, int64_t i, int64_t j, int64_t k)
{
    return cup_full(c, CUP_F32, ndim, (int64_t[]){i, j, k}, 1);
}

/* Each result has these sides. */
static void expect_shape(cup_tensor *t, int64_t i, int64_t j, int64_t k)
{
    EXPECT(t != NULL);
    EXPECT_INT(cup_tensor_size(t, 0), i);
    EXPECT_INT(cup_tensor_size(t, 1), j);
    EXPECT_INT(cup_tensor_size(t, 2), k);
}

static void multiply_nothing(cup_context *c)
{
    for (int layout = 0; layout < 4; layout++) {
        bool ta = layout & 1, tb = layout & 2;
        cup_tensor *a = ta ? ones(c, 3, 0, 5, 3) : ones(c, 3, 0, 3, 5);
        cup_tensor *b = tb ? ones(c, 3, 0, 4, 5) : ones(c, 3, 0, 5, 4), *y = ones(c, 3, 0, 3, 4);
        expect_shape(cup_matmul(c, a, b, ta, tb), 0, 3, 4);
        expect_shape(cup_matmul_scaled(c, a, b, 2,
                                       CUP_OPTIONS(cup_matmul_scaled_options, .transpose_a = ta,
                                                   .transpose_b = tb)),
                     0, 3, 4);
        EXPECT_INT(cup_matmul_into(c, y, a, b, ta, tb), CUP_OK);
        EXPECT_INT(cup_matmul_add(c, y, a, b, ta, tb), CUP_OK);
    }
}

/* Layers over x [0,3,5], forward and backward. */
static void train_on_nothing(cup_context *c)
{
    cup_tensor *x = ones(c, 3, 0, 3, 5), *w = ones(c, 2, 4, 5, 0), *bias = ones(c, 1, 4, 0, 0);
    cup_tensor *p[] = {x, w, bias};
    for (int i = 0; i < 3; i++)
        cup_require_grad(p[i]);
    cup_tensor *h[] = {cup_linear(c, x, w, bias), cup_linear_gelu(c, x, w, bias),
                       cup_linear_relu(c, x, w, bias), cup_linear_silu(c, x, w, bias),
                       cup_linear_add(c, x, w, ones(c, 3, 0, 3, 4), bias),
                       cup_linear_dropout(c, x, w, bias, NULL, 0.5)};
    cup_tensor *gated = cup_linear_swiglu(c, x, w, bias), *sum = h[0];
    expect_shape(gated, 0, 3, 2);
    for (int i = 0; i < 6; i++) {
        expect_shape(h[i], 0, 3, 4);
        sum = cup_add(c, sum, h[i]);
    }
    sum = cup_add(c, cup_sum(c, sum, NULL, 0, false), cup_sum(c, gated, NULL, 0, false));
    EXPECT_INT(cup_backward(c, sum), CUP_OK);
    float values[20];
    EXPECT_INT(cup_tensor_read(cup_grad(w), values, sizeof values), CUP_OK);
    for (int i = 0; i < 20; i++)
        EXPECT_NEAR(values[i], 0, 0);
}

static void pack_nothing(cup_context *c)
{
    cup_tensor *x = ones(c, 3, 0, 3, 8), *w = ones(c, 2, 4, 8, 0);
    cup_tensor *eight[2] = {NULL}, *four[3] = {NULL};
    EXPECT_INT(cup_pack_int8(c, w, 0, &eight[0], &eight[1]), CUP_OK);
    EXPECT_INT(cup_pack_int4(c, w, 0, true, &four[0], &four[1], &four[2]), CUP_OK);
    expect_shape(cup_linear_int8(c, x, eight[0], eight[1], NULL), 0, 3, 4);
    expect_shape(cup_linear_int4(c, x, four[0], four[1], four[2], NULL), 0, 3, 4);
    cup_tensor *offsets = cup_full(c, CUP_I32, 1, (int64_t[]){2}, 0);
    EXPECT(cup_grouped_matmul(c, ones(c, 2, 0, 5, 0), ones(c, 3, 2, 5, 3), offsets, false));
    cup_tensor *targets = cup_full(c, CUP_I32, 2, (int64_t[]){0, 3}, 0);
    EXPECT(cup_linear_cross_entropy(c, x, w, targets, -1, NULL));
}

/* Sums without terms: 0, then what comes after. */
static void sum_nothing(cup_context *c)
{
    cup_tensor *x = ones(c, 2, 3, 0, 0), *w = ones(c, 2, 4, 0, 0), *bias = ones(c, 1, 4, 0, 0);
    cup_tensor *results[] = {
        cup_matmul(c, x, w, false, true),
        cup_linear(c, x, w, bias),
        cup_linear_relu(c, x, w, bias),
        cup_linear_add(c, x, w, ones(c, 2, 3, 4, 0), bias),
        cup_linear_gelu(c, x, w, bias),
        cup_linear_silu(c, x, w, bias),
        cup_matmul(c, ones(c, 3, 2, 3, 0), ones(c, 3, 2, 4, 0), false, true),
    };
    static const double want[] = {0, 1, 1, 2, 0.841192, 0.731059, 0};
    for (int i = 0; i < 7; i++) {
        float values[24];
        int64_t count = cup_tensor_count(results[i]);
        EXPECT_INT(cup_tensor_read(results[i], values, (size_t)count * 4), CUP_OK);
        for (int64_t j = 0; j < count; j++)
            EXPECT_NEAR(values[j], want[i], 1e-5);
    }
}

static void do_nothing(cup_context *c)
{
    multiply_nothing(c);
    train_on_nothing(c);
    pack_nothing(c);
    sum_nothing(c);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(empty_products)
{
    do_nothing(cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")));
}

TEST(gpu_empty_products)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    do_nothing(c);
}
