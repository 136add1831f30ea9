/* silu where its quotient has no value: its limits, and those of its derivative. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { FIRST = 4, ROWS = 128, WIDE = 128 };

static float zero[2 * WIDE * WIDE];

static cup_tensor *floats(cup_context *c, const float *values, int64_t count, cup_dtype dtype)
{
    return cup_cast(c, cup_tensor_from(c, CUP_F32, 1, &count, values), dtype);
}

static void expect(cup_context *c, cup_tensor *t, const float *want, int64_t count)
{
    static float got[ROWS * WIDE];
    size_t bytes = (size_t)count * sizeof *got;
    EXPECT(t && cup_tensor_read(cup_cast(c, t, CUP_F32), got, bytes) == CUP_OK);
    for (int64_t i = 0; i < count; i++)
        EXPECT(isnan(want[i]) ? isnan(got[i]) : got[i] == want[i]);
}

static void expect_elementwise(cup_context *c, cup_dtype dtype)
{
    static const float x[FIRST] = {-INFINITY, -1e4f, INFINITY, NAN}, up[FIRST] = {2, -3, 4, 1};
    static const float silu[FIRST] = {0, 0, INFINITY, NAN}, slope[FIRST] = {0, 0, 1, NAN};
    static const float gate_slope[FIRST] = {0, 0, 4, NAN};
    cup_tensor *t = floats(c, x, FIRST, dtype), *gate = floats(c, x, FIRST, dtype);
    cup_tensor *by = floats(c, up, FIRST, dtype);
    EXPECT(cup_require_grad(t));
    EXPECT(cup_require_grad(gate));
    EXPECT(cup_require_grad(by));
    cup_tensor *y = cup_silu(c, t), *z = cup_swiglu(c, gate, by);
    expect(c, y, silu, FIRST);
    expect(c, z, silu, FIRST);
    cup_tensor *sum = cup_add(c, cup_sum(c, y, NULL, 0, false), cup_sum(c, z, NULL, 0, false));
    EXPECT_INT(cup_backward(c, sum), CUP_OK);
    expect(c, cup_grad(t), slope, FIRST);
    expect(c, cup_grad(gate), gate_slope, FIRST);
    expect(c, cup_grad(by), silu, FIRST);
}

/* Products that gate in the same pass: the gate is -infinite by its bias, `up` is a number. */
static void expect_fused(cup_context *c, cup_dtype dtype)
{
    static float bias[2 * WIDE];
    int64_t shape[] = {ROWS, WIDE}, wide[] = {2 * WIDE, WIDE};
    for (int i = 0; i < 2 * WIDE; i++)
        bias[i] = i < WIDE ? -INFINITY : 3;
    cup_tensor *x = cup_cast(c, cup_tensor_from(c, CUP_F32, 2, shape, zero), dtype);
    cup_tensor *weight = cup_cast(c, cup_tensor_from(c, CUP_F32, 2, wide, zero), dtype);
    cup_tensor *narrow = cup_cast(c, cup_tensor_from(c, CUP_F32, 2, shape, zero), dtype);
    expect(c, cup_linear_swiglu(c, x, weight, floats(c, bias, 2 * WIDE, dtype)), zero,
           ROWS * WIDE);
    expect(c, cup_linear_silu(c, x, narrow, floats(c, bias, WIDE, dtype)), zero, ROWS * WIDE);
}

static void expect_limits(const char *device)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    for (int i = 0; i < 3; i++) {
        expect_elementwise(c, dtypes[i]);
        expect_fused(c, dtypes[i]);
    }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(silu_has_limits)
{
    expect_limits("cpu");
}

TEST(gpu_silu_has_limits)
{
    expect_limits("cuda");
}
