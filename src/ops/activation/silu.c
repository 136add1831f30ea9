#include "ops/activation/silu.h"

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, silu_fwd, cup__silu(x[0]), cup__silu_f32(p), silu_of(x[0]))
CUP__FORMULA(2, silu_bwd, x[1] * cup__silu_slope(x[0]), q * cup__silu_slope_f32(p),
             x[1] * silu_slope_of(x[0]))
static cup_tensor *silu_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *one = cup__number(c, x, 1), *s = cup_sigmoid(c, x);
    return cup_mul(c, s, cup_add(c, one, cup_mul(c, x, cup_sub(c, one, s))));
}

CUP__UNARY_TWICE(silu, in, -6, 6, -6, 6)
