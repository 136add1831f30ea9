#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, sqrt(x[0]))
CUP__FLOATS_1(value_f32, __builtin_sqrtf(p))

CUP__ELEMENT(slope, x[1] / (2 * x[0]))
CUP__FLOATS_2(slope_f32, q / (2.0f * p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sqrt_grad(g->c, g->out[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "sqrt.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "sqrt_fwd"};
static const cup__pointwise slope_kind = {.source = "sqrt.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "sqrt_bwd"};

const cup__op cup__op_sqrt = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_OUT(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{0.05, 4}},
};

const cup__op cup__op_sqrt_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{0.2, 2}, {-2, 2}},
};
