#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, exp(x[0]))
CUP__FLOATS_1(value_f32, cup__exp_f32(p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_mul(g->c, g->d_out[0], g->out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "exp.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "exp_fwd"};

const cup__op cup__op_exp = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};
