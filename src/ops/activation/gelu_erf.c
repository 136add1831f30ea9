#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define SQRT_HALF 0.70710678118654752440
#define DENSITY 0.39894228040143267794 /* of the normal distribution at 0 */

CUP__FORMULA(1, gelu_erf_fwd, 0.5 * x[0] * erfc(-x[0] * SQRT_HALF), p * cup__normal_below_f32(p),
             x[0] * normal_below(x[0]))
CUP__FORMULA(2, gelu_erf_bwd,
             x[1] * (0.5 * erfc(-x[0] * SQRT_HALF) + x[0] * DENSITY * exp(-0.5 * x[0] * x[0])),
             q * (cup__normal_below_f32(p) + p * (float)DENSITY * cup__exp_f32(-0.5f * p * p)),
             x[1] * gelu_erf_slope_of(x[0]))
/* For -6, e^(-x^2/2) carries the rounding of 18 18-fold. */
static cup_tensor *gelu_erf_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *below = cup_add(c, cup__number(c, x, 1), cup_erf(c, cup_scale(c, x, SQRT_HALF)));
    cup_tensor *density = cup_exp(c, cup_scale(c, cup_mul(c, x, x), -0.5));
    return cup_add(c, cup_scale(c, below, 0.5), cup_scale(c, cup_mul(c, x, density), DENSITY));
}

CUP__UNARY_TWICE(gelu_erf, in, -6, 6, -6, 6, .tolerance = 16)
