/* The angles of a sine and of a cosine. (1 - x) (1 + x) does not cancel near 1. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, asin_fwd, asin(x[0]), __builtin_asinf(p), asin(x[0]))
CUP__FORMULA(1, acos_fwd, acos(x[0]), __builtin_acosf(p), acos(x[0]))
CUP__FORMULA(2, asin_bwd, x[1] / sqrt((1 - x[0]) * (1 + x[0])),
             q / __builtin_sqrtf((1.0f - p) * (1.0f + p)),
             quotient_of(x[1], sqrt_of((1 - x[0]) * (1 + x[0]))))
CUP__FORMULA(2, acos_bwd, -x[1] / sqrt((1 - x[0]) * (1 + x[0])),
             -q / __builtin_sqrtf((1.0f - p) * (1.0f + p)),
             quotient_of(-x[1], sqrt_of((1 - x[0]) * (1 + x[0]))))

static cup_tensor *asin_slope(cup_context *c, cup_tensor *x)
{
    return cup_rsqrt(c, cup_sub(c, cup__number(c, x, 1), cup_square(c, x)));
}

CUP__UNARY_TWICE(asin, in, -0.9, 0.9, -0.9, 0.9)

static cup_tensor *acos_slope(cup_context *c, cup_tensor *x)
{
    return cup_neg(c, asin_slope(c, x));
}

CUP__UNARY_TWICE(acos, in, -0.9, 0.9, -0.9, 0.9)
