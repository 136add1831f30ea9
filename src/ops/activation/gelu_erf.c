#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define SQRT_HALF 0.70710678118654752440
#define DENSITY 0.39894228040143267794 /* of the normal distribution at 0 */

CUP__ELEMENT(gelu_erf, 0.5 * x[0] * erfc(-x[0] * SQRT_HALF))
CUP__FLOATS_1(gelu_erf_f32, p * cup__normal_below_f32(p))

CUP__ELEMENT(slope,
             x[1] * (0.5 * erfc(-x[0] * SQRT_HALF) + x[0] * DENSITY * exp(-0.5 * x[0] * x[0])))
CUP__FLOATS_2(slope_f32,
              q * (cup__normal_below_f32(p) + p * (float)DENSITY * cup__exp_f32(-0.5f * p * p)))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__gelu_erf_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "gelu_erf.cu", .f64 = gelu_erf, .f32 = gelu_erf_f32,
                                    .entry = "gelu_erf_fwd"};
static const cup__pointwise slope_kind = {.source = "gelu_erf.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "gelu_erf_bwd"};

const cup__op cup__op_gelu_erf = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-6, 6}},
    .tolerance = 16, /* for -6, e^(-x^2/2) carries the rounding of 18 18-fold */
};

const cup__op cup__op_gelu_erf_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-6, 6}, {-2, 2}},
    .tolerance = 16, /* for -6, e^(-x^2/2) carries the rounding of 18 18-fold */
};
