#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, sqrt_fwd, sqrt(x[0]), __builtin_sqrtf(p), sqrt_of(x[0]))
CUP__FORMULA(2, sqrt_bwd, x[1] / (2 * x[0]), q / (2.0f * p), quotient_of(x[1], 2 * x[0]))

/* Of dy / 2 y. */
static cup_status sqrt_again(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *y = g->in[0], *d = g->d_out[0];
    g->d_in[0] = cup_neg(c, cup_div(c, cup_mul(c, d, g->out[0]), y));
    g->d_in[1] = cup__sqrt_grad(c, y, d);
    return CUP_OK;
}

CUP__UNARY_TWICE(sqrt, out, 0.05, 4, 0.2, 2, sqrt_again,
                 CUP__SAVE_IN(0) | CUP__SAVE_OUT(0))
