#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(sigmoid, 1 / (1 + exp(-x[0])))
CUP__FLOATS_1(sigmoid_f32, cup__sigmoid_f32(p))

CUP__ELEMENT(slope, x[1] * x[0] * (1 - x[0]))
CUP__FLOATS_2(slope_f32, q * p * (1.0f - p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sigmoid_grad(g->c, g->out[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "sigmoid.cu", .f64 = sigmoid, .f32 = sigmoid_f32,
                                    .entry = "sigmoid_fwd"};
static const cup__pointwise slope_kind = {.source = "sigmoid.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "sigmoid_bwd"};

const cup__op cup__op_sigmoid = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};

const cup__op cup__op_sigmoid_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{0, 1}, {-2, 2}},
};
