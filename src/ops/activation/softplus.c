#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, softplus_fwd, x[0] > 0 ? x[0] + log1p(exp(-x[0])) : log1p(exp(x[0])),
             cup__softplus_f32(p), softplus_of(x[0]))
CUP__FORMULA(2, softplus_bwd, x[1] / (1 + exp(-x[0])), q * cup__sigmoid_f32(p),
             x[1] * sigmoid_of(x[0]))
static cup_tensor *softplus_slope(cup_context *c, cup_tensor *x)
{
    return cup_sigmoid(c, x);
}

/* For -12, e^x carries the rounding of x 12-fold. */
CUP__UNARY_TWICE(softplus, in, -12, 12, -12, 12, .tolerance = 16)
