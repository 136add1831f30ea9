#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, log_fwd, log(x[0]), cup__log_f32(p), log_of(x[0]))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_div(g->c, g->d_out[0], g->in[0]);
    return CUP_OK;
}

const cup__op cup__op_log = {
    CUP__POINTWISE(&log_fwd_kind),
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{0.05, 4}},
};
