/* The norm of numbers whose squares f32 has no place for. */
#include <math.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

/* `count` times the same number, behind a chunk of zeros, and one element that changes nothing. */
static void expect_norm(cup_context *c, cup_dtype dtype, double x, int64_t count)
{
    cup_scope_open(c);
    cup_tensor *all[] = {cup_full(c, dtype, 1, (int64_t[]){20000}, 0),
                         cup_cast(c, cup_full(c, CUP_F64, 1, &count, x), dtype),
                         cup_full(c, dtype, 0, NULL, 0)};
    double one = cup_tensor_item(cup_max(c, cup_cast(c, all[1], CUP_F64), NULL, 0, false));
    double got = cup_tensor_item(cup_global_norm(c, all, 3)), want = one * sqrt((double)count);
    if (!(fabs(got - want) <= 1e-6 * want))
        test_fail(__FILE__, __LINE__, "the norm of %lld times %g is %g, not %g", (long long)count,
                  one, got, want);
    cup_scope_close(c);
}

static void expect_norms(cup_context *c)
{
    const double wide[] = {1, 3e18, 5e19, 1e30, 1e35, 1e-18, 1e-22, 1e-30, 1e-37};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        expect_norm(c, CUP_F32, wide[i], 20000);
        expect_norm(c, CUP_BF16, wide[i], 33);
        expect_norm(c, CUP_F64, wide[i], 17000);
    }
    expect_norm(c, CUP_F16, 60000, 40000);
    expect_norm(c, CUP_F32, 3e38, 1);
    cup_context_free(c);
}

TEST(global_norm_of_any_size)
{
    expect_norms(cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")));
}

TEST(gpu_global_norm_of_any_size)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    expect_norms(c);
}
