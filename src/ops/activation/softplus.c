#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(softplus, x[0] > 0 ? x[0] + log1p(exp(-x[0])) : log1p(exp(x[0])))
CUP__FLOATS_1(softplus_f32, cup__softplus_f32(p))

CUP__ELEMENT(slope, x[1] / (1 + exp(-x[0])))
CUP__FLOATS_2(slope_f32, q * cup__sigmoid_f32(p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__softplus_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "softplus.cu", .f64 = softplus, .f32 = softplus_f32,
                                    .entry = "softplus_fwd"};
static const cup__pointwise slope_kind = {.source = "softplus.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "softplus_bwd"};

const cup__op cup__op_softplus = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-12, 12}},
    .tolerance = 16, /* for -12, e^x carries the rounding of x 12-fold */
};

const cup__op cup__op_softplus_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-12, 12}, {-2, 2}},
    .tolerance = 16, /* as softplus */
};
