#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, leaky_relu_fwd, x[0] > 0 ? x[0] : a[0] * x[0], p > 0.0f ? p : (float)a[0] * p,
             x[0] > 0 ? x[0] : a[0] * x[0])
CUP__FORMULA(2, leaky_relu_bwd, x[0] > 0 ? x[1] : a[0] * x[1], p > 0.0f ? q : (float)a[0] * q,
             x[0] > 0 ? x[1] : a[0] * x[1])
static const cup__leaky_relu_attributes first = {0.01}, second = {0.3};
static const cup__leaky_relu_grad_attributes slope_first = {0.01}, slope_second = {0.3};

static cup_status composed(cup__grad *g)
{
    const cup__leaky_relu_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *above = cup_greater(c, g->in[0], cup__number(c, g->in[0], 0));
    g->d_in[0] = cup_where(c, above, g->d_out[0], cup_scale(c, g->d_out[0], a->slope));
    return CUP_OK;
}

CUP__UNARY_WITH(leaky_relu, cup__pointwise_infer, composed, a->slope)
