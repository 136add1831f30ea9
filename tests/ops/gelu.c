/* The far tail of gelu, in every way to compute it that is not wgmma's. */
#include <math.h>

#include "../test.h"
#include "cupola/ops.h"

/* The bias alone makes what stands before the gelu. Whole vectors of k go to other kernels than odd
 * ones. */
static void expect_tail(cup_context *c, cup_dtype dtype, int64_t m, int64_t k, int64_t n)
{
    const int64_t x_shape[] = {m, k}, w_shape[] = {n, k};
    cup_tensor *x = cup_full(c, dtype, 2, x_shape, 0), *w = cup_full(c, dtype, 2, w_shape, 1);
    cup_tensor *bias = cup_full(c, dtype, 1, &n, -9.625);
    cup_tensor *y = cup_cast(c, cup_linear_gelu(c, x, w, bias), CUP_F64);
    double got[400], v = -9.625, u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    double want = v / (1 + exp(-2 * u));
    EXPECT(m * n <= 400);
    EXPECT_INT(cup_tensor_read(y, got, (size_t)(m * n) * sizeof *got), CUP_OK);
    for (int64_t i = 0; i < m * n; i++)
        EXPECT_NEAR(got[i] / want, 1, dtype == CUP_BF16 ? 0.02 : 1e-4);
}

static void expect_tails(cup_context *c)
{
    for (int i = 0; i < 2; i++) {
        expect_tail(c, i ? CUP_F32 : CUP_BF16, 2, 101, 1);
        expect_tail(c, i ? CUP_F32 : CUP_BF16, 1, 128, 64);
        expect_tail(c, i ? CUP_F32 : CUP_BF16, 70, 33, 5);
    }
    cup_context_free(c);
}

TEST(gelu_keeps_its_tail)
{
    expect_tails(cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")));
}

TEST(gpu_gelu_keeps_its_tail)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    expect_tails(c);
}
