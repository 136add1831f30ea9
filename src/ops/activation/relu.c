#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(relu_i64, x[0] < 0 ? 0 : x[0])

CUP__FORMULA(1, relu_fwd, x[0] < 0 ? 0 : x[0], p < 0.0f ? 0.0f : p, x[0] < 0 ? (real)0 : x[0],
             .i64 = relu_i64)
CUP__FORMULA(2, relu_bwd, x[0] > 0 ? x[1] : 0, p > 0.0f ? q : 0.0f, x[0] > 0 ? x[1] : (real)0)

static cup_tensor *relu_slope(cup_context *c, cup_tensor *y)
{
    cup_tensor *zero = cup__number(c, y, 0);
    return cup_where(c, cup_greater(c, y, zero), cup__number(c, y, 1), zero);
}

CUP__UNARY_TWICE(relu, out, -2, 2, -2, 2)
