/* Near 0: log(1 + x) and e^x - 1 without the loss of a small x. */
#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, log1p_fwd, log1p(x[0]), cup__log1p_f32(p), log1p(x[0]))
CUP__FORMULA(2, log1p_bwd, x[1] / (1 + x[0]), q / (1.0f + p), quotient_of(x[1], 1 + x[0]))
CUP__FORMULA(1, expm1_fwd, expm1(x[0]), cup__expm1_f32(p), expm1(x[0]))
CUP__FORMULA(2, expm1_bwd, x[1] * exp(x[0]), q * cup__exp_f32(p), x[1] * exp_of(x[0]))

static cup_tensor *log1p_slope(cup_context *c, cup_tensor *x)
{
    return cup_reciprocal(c, cup_add(c, x, cup__number(c, x, 1)));
}

CUP__UNARY_TWICE(log1p, in, -0.75, 3, -0.75, 3)

static cup_tensor *expm1_slope(cup_context *c, cup_tensor *x)
{
    return cup_exp(c, x);
}

CUP__UNARY_TWICE(expm1, in, -3, 3, -3, 3)
