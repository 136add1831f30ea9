#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, elu_fwd, x[0] > 0 ? x[0] : a[0] * expm1(x[0]),
             p > 0.0f ? p : (float)a[0] * cup__expm1_f32(p),
             x[0] > 0 ? x[0] : a[0] * expm1(x[0]))
CUP__FORMULA(2, elu_bwd, x[0] > 0 ? x[1] : x[1] * a[0] * exp(x[0]),
             p > 0.0f ? q : q * (float)a[0] * cup__exp_f32(p),
             x[0] > 0 ? x[1] : x[1] * a[0] * exp_of(x[0]))
static const cup__elu_attributes first = {1}, second = {0.3};
static const cup__elu_grad_attributes slope_first = {1}, slope_second = {0.3};

/* The exponential of what is above 0, which is not taken, must not become infinite. */
static cup_status composed(cup__grad *g)
{
    const cup__elu_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *x = cup__widen(c, g->in[0]), *dy = cup__widen(c, g->d_out[0]);
    cup_tensor *zero = cup__number(c, x, 0), *above = cup_greater(c, x, zero);
    cup_tensor *slope = cup_scale(c, cup_exp(c, cup_where(c, above, zero, x)), a->alpha);
    g->d_in[0] = cup_cast(c, cup_where(c, above, dy, cup_mul(c, dy, slope)), g->in_shape[0].dtype);
    return CUP_OK;
}

CUP__UNARY_WITH(elu, cup__pointwise_infer, composed, a->alpha)
