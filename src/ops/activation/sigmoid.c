#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, sigmoid_fwd, 1 / (1 + exp(-x[0])), cup__sigmoid_f32(p), sigmoid_of(x[0]))
CUP__FORMULA(2, sigmoid_bwd, x[1] * x[0] * (1 - x[0]), q * p * (1.0f - p),
             x[1] * x[0] * (1 - x[0]))

static cup_tensor *sigmoid_slope(cup_context *c, cup_tensor *y)
{
    return cup_mul(c, y, cup_sub(c, cup__number(c, y, 1), y));
}

CUP__UNARY_TWICE(sigmoid, out, -2, 2, 0, 1)
