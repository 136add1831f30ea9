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
CUP__UNARY(gelu_erf, in, -6, 6, -6, 6, .tolerance = 16)
