/* The far tails of activations that a product ends in, and of their derivatives: as gelu.c does for
 * gelu alone. The products come out as 0 or 1, so that what is activated is exact. */
#include <math.h>

#include "../test.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"

enum { MOST = 70 * 64 };

typedef struct place {
    int64_t m, k, n;
} place;

static cup_tensor *full(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns,
                        double value)
{
    const int64_t shape[] = {rows, columns};
    return cup_full(c, dtype, 2, shape, value);
}

/* A matrix of rows that are `left` in its first columns and `right` in the others. */
static cup_tensor *halves(cup_context *c, cup_dtype dtype, const place *p, double left,
                          double right)
{
    cup_tensor *sides[] = {full(c, dtype, p->m, p->n, left), full(c, dtype, p->m, p->n, right)};
    return cup_concat(c, sides, 2, 1);
}

static void expect(cup_context *c, cup_tensor *t, cup_dtype dtype, double want)
{
    static double got[MOST];
    t = cup_cast(c, t, CUP_F64);
    int64_t count = cup_tensor_count(t);
    EXPECT(t && count <= MOST);
    EXPECT_INT(cup_tensor_read(t, got, (size_t)count * sizeof *got), CUP_OK);
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR(got[i] / want, 1, dtype == CUP_BF16 ? 0.02 : 1e-4);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_slope(double x)
{
    double s = sigmoid(2 * sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x));
    return s + 2 * x * s * (1 - s) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void expect_values(cup_context *c, cup_dtype dtype, const place *p, double v)
{
    cup_tensor *x = full(c, dtype, p->m, p->k, 0), *w = full(c, dtype, p->n, p->k, 1);
    cup_tensor *both = full(c, dtype, 2 * p->n, p->k, 1);
    cup_tensor *sides[] = {cup_full(c, dtype, 1, &p->n, v), cup_full(c, dtype, 1, &p->n, 2)};
    expect(c, cup_linear_silu(c, x, w, sides[0]), dtype, v * sigmoid(v));
    expect(c, cup_linear_swiglu(c, x, both, cup_concat(c, sides, 2, 0)), dtype,
           2 * v * sigmoid(v));
}

/* dy weight is 1. */
static void expect_slopes(cup_context *c, cup_dtype dtype, const place *p, double v)
{
    cup_tensor *dy = full(c, dtype, p->m, p->k, 1.0 / (double)p->k);
    cup_tensor *w = full(c, dtype, p->k, p->n, 1), *pre = full(c, dtype, p->m, p->n, v / 4);
    expect(c, cup__matmul_gelu_grad(c, dy, w, pre), dtype, gelu_slope(v / 4));
    cup_tensor *both = cup__matmul_swiglu_grad(c, dy, w, halves(c, dtype, p, v, 2));
    const int64_t left[] = {0, 0}, right[] = {0, p->n}, size[] = {p->m, p->n};
    double s = sigmoid(v);
    expect(c, cup_slice(c, both, left, 2, size, 2), dtype, 2 * s * (1 + v * (1 - s)));
    expect(c, cup_slice(c, both, right, 2, size, 2), dtype, v * s);
}

static void expect_tails(cup_context *c)
{
    static const place places[] = {{2, 101, 1}, {1, 128, 64}, {70, 32, 8}, {70, 64, 64}};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 2; d++) {
            expect_values(c, d ? CUP_F32 : CUP_BF16, &places[i], -32);
            expect_slopes(c, d ? CUP_F32 : CUP_BF16, &places[i], -32);
        }
    cup_context_free(c);
}

TEST(products_keep_tails)
{
    expect_tails(cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")));
}

TEST(gpu_products_keep_tails)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    expect_tails(c);
}
