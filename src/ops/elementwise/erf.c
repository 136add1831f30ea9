#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define TWO_BY_ROOT_PI 1.12837916709551257390

CUP__FORMULA(1, erf_fwd, erf(x[0]), cup__erf_f32(p), erf(x[0]))
CUP__FORMULA(2, erf_bwd, x[1] * TWO_BY_ROOT_PI * exp(-x[0] * x[0]),
             q * (float)TWO_BY_ROOT_PI * cup__exp_f32(-p * p),
             x[1] * (real)1.12837916709551257390 * exp_of(-x[0] * x[0]))
static cup_tensor *erf_slope(cup_context *c, cup_tensor *x)
{
    return cup_scale(c, cup_exp(c, cup_neg(c, cup_mul(c, x, x))), TWO_BY_ROOT_PI);
}

CUP__UNARY_TWICE(erf, in, -2, 2, -2, 2)
