#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define TWO_BY_ROOT_PI 1.12837916709551257390

CUP__ELEMENT(value, erf(x[0]))
CUP__FLOATS_1(value_f32, cup__erf_f32(p))

CUP__ELEMENT(slope, x[1] * TWO_BY_ROOT_PI * exp(-x[0] * x[0]))
CUP__FLOATS_2(slope_f32, q * (float)TWO_BY_ROOT_PI * cup__exp_f32(-p * p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__erf_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "erf.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "erf_fwd"};
static const cup__pointwise slope_kind = {.source = "erf.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "erf_bwd"};

const cup__op cup__op_erf = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};

const cup__op cup__op_erf_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
};
