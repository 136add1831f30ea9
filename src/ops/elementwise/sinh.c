/* Hyperbolic functions and what undoes them. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, sinh_fwd, sinh(x[0]), __builtin_sinhf(p), sinh(x[0]))
CUP__FORMULA(1, cosh_fwd, cosh(x[0]), __builtin_coshf(p), cosh(x[0]))
CUP__FORMULA(2, sinh_bwd, x[1] * cosh(x[0]), q * __builtin_coshf(p), x[1] * cosh(x[0]))
CUP__FORMULA(2, cosh_bwd, x[1] * sinh(x[0]), q * __builtin_sinhf(p), x[1] * sinh(x[0]))

static cup_tensor *sinh_slope(cup_context *c, cup_tensor *x)
{
    return cup_cosh(c, x);
}

CUP__UNARY_TWICE(sinh, in, -4, 4, -4, 4)

static cup_tensor *cosh_slope(cup_context *c, cup_tensor *x)
{
    return cup_sinh(c, x);
}

CUP__UNARY_TWICE(cosh, in, -4, 4, -4, 4)

CUP__FORMULA(1, asinh_fwd, asinh(x[0]), __builtin_asinhf(p), asinh(x[0]))
CUP__FORMULA(1, acosh_fwd, acosh(x[0]), __builtin_acoshf(p), acosh(x[0]))
CUP__FORMULA(1, atanh_fwd, atanh(x[0]), __builtin_atanhf(p), atanh(x[0]))
CUP__FORMULA(2, asinh_bwd, x[1] / hypot(x[0], 1), q / __builtin_hypotf(p, 1.0f),
             quotient_of(x[1], hypot(x[0], (real)1)))
CUP__FORMULA(2, acosh_bwd, x[1] / (sqrt(x[0] - 1) * sqrt(x[0] + 1)),
             q / (__builtin_sqrtf(p - 1.0f) * __builtin_sqrtf(p + 1.0f)),
             quotient_of(x[1], sqrt_of(x[0] - 1) * sqrt_of(x[0] + 1)))
CUP__FORMULA(2, atanh_bwd, x[1] / ((1 - x[0]) * (1 + x[0])), q / ((1.0f - p) * (1.0f + p)),
             quotient_of(x[1], (1 - x[0]) * (1 + x[0])))

static cup_tensor *asinh_slope(cup_context *c, cup_tensor *x)
{
    return cup_rsqrt(c, cup_add(c, cup_square(c, x), cup__number(c, x, 1)));
}

CUP__UNARY_TWICE(asinh, in, -4, 4, -4, 4)

static cup_tensor *acosh_slope(cup_context *c, cup_tensor *x)
{
    return cup_rsqrt(c, cup_sub(c, cup_square(c, x), cup__number(c, x, 1)));
}

CUP__UNARY_TWICE(acosh, in, 1.25, 5, 1.25, 5)

static cup_tensor *atanh_slope(cup_context *c, cup_tensor *x)
{
    return cup_reciprocal(c, cup_sub(c, cup__number(c, x, 1), cup_square(c, x)));
}

CUP__UNARY_TWICE(atanh, in, -0.9, 0.9, -0.9, 0.9)
