#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, fabs(x[0]))
CUP__FLOATS_1(value_f32, __builtin_fabsf(p))
CUP__ELEMENT_I64(value_i64, x[0] < 0 ? (int64_t)(0 - (uint64_t)x[0]) : x[0])

CUP__ELEMENT(slope, x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : 0)
CUP__FLOATS_2(slope_f32, p > 0.0f ? q : p < 0.0f ? -q : 0.0f)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__abs_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "abs.cu", .f64 = value, .f32 = value_f32,
                                    .i64 = value_i64, .entry = "abs_fwd"};
static const cup__pointwise slope_kind = {.source = "abs.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "abs_bwd"};

const cup__op cup__op_abs = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};

const cup__op cup__op_abs_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
};
