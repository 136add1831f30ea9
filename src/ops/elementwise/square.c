#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(square_i64, (int64_t)((uint64_t)x[0] * (uint64_t)x[0]))
CUP__FORMULA(1, square_fwd, x[0] * x[0], p * p, x[0] * x[0], .i64 = square_i64)
CUP__FORMULA(2, square_bwd, 2 * x[0] * x[1], 2.0f * p * q, 2 * x[0] * x[1])

static cup_tensor *square_slope(cup_context *c, cup_tensor *x)
{
    return cup_scale(c, x, 2);
}

CUP__UNARY_TWICE(square, in, -2, 2, -2, 2)
