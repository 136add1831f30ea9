#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, sigmoid_fwd, 1 / (1 + exp(-x[0])), cup__sigmoid_f32(p), sigmoid_of(x[0]))
CUP__FORMULA(2, sigmoid_bwd, x[1] * x[0] * (1 - x[0]), q * p * (1.0f - p),
             x[1] * x[0] * (1 - x[0]))

/* Of dy y (1 - y). */
static cup_status sigmoid_again(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *y = g->in[0], *both = cup_mul(c, g->d_out[0], g->in[1]);
    g->d_in[0] = cup_sub(c, both, cup_scale(c, cup_mul(c, y, both), 2));
    g->d_in[1] = cup__sigmoid_grad(c, y, g->d_out[0]);
    return CUP_OK;
}

CUP__UNARY_TWICE(sigmoid, out, -2, 2, 0, 1, sigmoid_again,
                 CUP__SAVE_IN(0) | CUP__SAVE_IN(1))
