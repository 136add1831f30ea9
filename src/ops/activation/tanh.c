#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, tanh_fwd, tanh(x[0]), cup__tanh_f32(p), tanh_of(x[0]))
CUP__FORMULA(2, tanh_bwd, x[1] * (1 - x[0] * x[0]), q * (1.0f - p * p), x[1] * (1 - x[0] * x[0]))

static cup_tensor *tanh_slope(cup_context *c, cup_tensor *y)
{
    return cup_sub(c, cup__number(c, y, 1), cup_mul(c, y, y));
}

CUP__UNARY_TWICE(tanh, out, -2, 2, -1, 1)
