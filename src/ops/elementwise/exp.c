#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, exp_fwd, exp(x[0]), cup__exp_f32(p), exp_of(x[0]))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_mul(g->c, g->d_out[0], g->out[0]);
    return CUP_OK;
}

const cup__op cup__op_exp = {
    CUP__POINTWISE(&exp_fwd_kind),
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};
