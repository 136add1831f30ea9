#include "dispatch/attributes.h"
#include "ops/activation/silu.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(silu, cup__silu(x[0]))
CUP__FLOATS_1(silu_f32, cup__silu_f32(p))

CUP__ELEMENT(slope, x[1] * cup__silu_slope(x[0]))
CUP__FLOATS_2(slope_f32, q * cup__silu_slope_f32(p))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__silu_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "silu.cu", .f64 = silu, .f32 = silu_f32,
                                    .entry = "silu_fwd"};
static const cup__pointwise slope_kind = {.source = "silu.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "silu_bwd"};

const cup__op cup__op_silu = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-6, 6}},
};

const cup__op cup__op_silu_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-6, 6}, {-2, 2}},
};
