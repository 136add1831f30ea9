#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(hardswish, x[0] * fmin(fmax(x[0] + 3, 0), 6) / 6)
CUP__FLOATS_1(hardswish_f32,
              p * __builtin_fminf(__builtin_fmaxf(p + 3.0f, 0.0f), 6.0f) * (1.0f / 6))

CUP__ELEMENT(slope, x[1] * (x[0] <= -3 ? 0 : x[0] >= 3 ? 1 : (2 * x[0] + 3) / 6))
CUP__FLOATS_2(slope_f32,
              q * (p <= -3.0f ? 0.0f : p >= 3.0f ? 1.0f : (2.0f * p + 3.0f) * (1.0f / 6)))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__hardswish_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "hardswish.cu", .f64 = hardswish,
                                    .f32 = hardswish_f32, .entry = "hardswish_fwd"};
static const cup__pointwise slope_kind = {.source = "hardswish.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "hardswish_bwd"};

const cup__op cup__op_hardswish = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-5, 5}},
};

const cup__op cup__op_hardswish_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-5, 5}, {-2, 2}},
};
