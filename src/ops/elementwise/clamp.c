#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, clamp_fwd, x[0] < a[0] ? a[0] : x[0] > a[1] ? a[1] : x[0],
             p < (float)a[0] ? (float)a[0] : p > (float)a[1] ? (float)a[1] : p,
             x[0] < a[0] ? a[0] : x[0] > a[1] ? a[1] : x[0])
CUP__FORMULA(2, clamp_bwd, x[0] >= a[0] && x[0] <= a[1] ? x[1] : 0,
             p >= (float)a[0] && p <= (float)a[1] ? q : 0.0f,
             x[0] >= a[0] && x[0] <= a[1] ? x[1] : (real)0)

static cup_status infer(cup__call *call)
{
    const cup__clamp_attributes *a = call->attributes;
    if (!(a->low <= a->high))
        return cup__call_fail(call, CUP_ARGUMENT, "low is %g and high %g; low must not be above",
                              a->low, a->high);
    return cup__pointwise_infer(call);
}

static const cup__clamp_attributes first = {-0.5, 1}, second = {0, 0};
static const cup__clamp_grad_attributes slope_first = {-0.5, 1}, slope_second = {0, 0};

static cup_status composed(cup__grad *g)
{
    const cup__clamp_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *x = g->in[0], *zero = cup__number(c, x, 0);
    cup_tensor *low = cup__number(c, x, a->low), *high = cup__number(c, x, a->high);
    cup_tensor *below = cup_where(c, cup_less_equal(c, x, high), g->d_out[0], zero);
    g->d_in[0] = cup_where(c, cup_greater_equal(c, x, low), below, zero);
    return CUP_OK;
}

CUP__UNARY_WITH(clamp, infer, composed, a->low, a->high)
