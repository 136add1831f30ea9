#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, tanh_fwd, tanh(x[0]), cup__tanh_f32(p), tanh_of(x[0]))
CUP__FORMULA(2, tanh_bwd, x[1] * (1 - x[0] * x[0]), q * (1.0f - p * p), x[1] * (1 - x[0] * x[0]))

/* Of dy (1 - y^2). */
static cup_status tanh_again(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *y = g->in[0], *both = cup_mul(c, g->d_out[0], g->in[1]);
    g->d_in[0] = cup_scale(c, cup_mul(c, y, both), -2);
    g->d_in[1] = cup__tanh_grad(c, y, g->d_out[0]);
    return CUP_OK;
}

CUP__UNARY_TWICE(tanh, out, -2, 2, -1, 1, tanh_again,
                 CUP__SAVE_IN(0) | CUP__SAVE_IN(1))
