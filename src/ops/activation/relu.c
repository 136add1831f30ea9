#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(relu, x[0] < 0 ? 0 : x[0])
CUP__FLOATS_1(relu_f32, p < 0.0f ? 0.0f : p)
CUP__ELEMENT_I64(relu_i64, x[0] < 0 ? 0 : x[0])

CUP__ELEMENT(slope, x[0] > 0 ? x[1] : 0)
CUP__FLOATS_2(slope_f32, p > 0.0f ? q : 0.0f)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__relu_grad(g->c, g->out[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "relu.cu", .f64 = relu, .f32 = relu_f32,
                                    .i64 = relu_i64, .entry = "relu_fwd"};
static const cup__pointwise slope_kind = {.source = "relu.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "relu_bwd"};

const cup__op cup__op_relu = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};

const cup__op cup__op_relu_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
};
