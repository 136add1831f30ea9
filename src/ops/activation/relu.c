#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(relu_i64, x[0] < 0 ? 0 : x[0])

CUP__FORMULA(1, relu_fwd, x[0] < 0 ? 0 : x[0], p < 0.0f ? 0.0f : p, x[0] < 0 ? (real)0 : x[0],
             .i64 = relu_i64)
CUP__FORMULA(2, relu_bwd, x[0] > 0 ? x[1] : 0, p > 0.0f ? q : 0.0f, x[0] > 0 ? x[1] : (real)0)

/* Its slope goes up at 0 alone. */
static cup_status relu_again(cup__grad *g)
{
    g->d_in[1] = cup__relu_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

CUP__UNARY_TWICE(relu, out, -2, 2, -2, 2, relu_again,
                 CUP__SAVE_IN(0))
