/* Powers of 2 and their logarithm. */
#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define LN_2 0.69314718055994530942

CUP__FORMULA(1, log2_fwd, log2(x[0]), cup__log2_f32(p), log2(x[0]))
CUP__FORMULA(2, log2_bwd, x[1] / (x[0] * LN_2), q / (p * (float)LN_2),
             quotient_of(x[1], x[0] * (real)0.69314718055994530942))
CUP__FORMULA(1, exp2_fwd, exp2(x[0]), cup__exp2_f32(p), exp2(x[0]))
CUP__FORMULA(2, exp2_bwd, x[1] * x[0] * LN_2, q * p * (float)LN_2,
             x[1] * x[0] * (real)0.69314718055994530942)

static cup_tensor *log2_slope(cup_context *c, cup_tensor *x)
{
    return cup_reciprocal(c, cup_scale(c, x, LN_2));
}

CUP__UNARY_TWICE(log2, in, 0.05, 4, 0.25, 4)

static cup_tensor *exp2_slope(cup_context *c, cup_tensor *y)
{
    return cup_scale(c, y, LN_2);
}

CUP__UNARY_TWICE(exp2, out, -4, 4, 0.1, 4)
