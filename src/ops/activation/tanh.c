#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, tanh(x[0]))
CUP__FLOATS_1(value_f32, cup__tanh_f32(p))

CUP__ELEMENT(slope, x[1] * (1 - x[0] * x[0]))
CUP__FLOATS_2(slope_f32, q * (1.0f - p * p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__tanh_grad(g->c, g->out[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "tanh.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "tanh_fwd"};
static const cup__pointwise slope_kind = {.source = "tanh.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "tanh_bwd"};

const cup__op cup__op_tanh = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};

const cup__op cup__op_tanh_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-1, 1}, {-2, 2}},
};
