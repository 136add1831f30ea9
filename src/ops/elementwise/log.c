#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, log(x[0]))
CUP__FLOATS_1(value_f32, cup__log_f32(p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_div(g->c, g->d_out[0], g->in[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "log.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "log_fwd"};

const cup__op cup__op_log = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{0.05, 4}},
};
