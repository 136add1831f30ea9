#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(elu, x[0] > 0 ? x[0] : a[0] * expm1(x[0]))
CUP__FLOATS_1(elu_f32, p > 0.0f ? p : (float)a[0] * cup__expm1_f32(p))

CUP__ELEMENT(slope, x[0] > 0 ? x[1] : x[1] * a[0] * exp(x[0]))
CUP__FLOATS_2(slope_f32, p > 0.0f ? q : q * (float)a[0] * cup__exp_f32(p))

static cup_status gradient(cup__grad *g)
{
    const cup__elu_attributes *a = g->attributes;
    g->d_in[0] = cup__elu_grad(g->c, g->in[0], g->d_out[0], a->alpha);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "elu.cu", .f64 = elu, .f32 = elu_f32,
                                    .entry = "elu_fwd"};
static const cup__pointwise slope_kind = {.source = "elu.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "elu_bwd"};
static const cup__elu_attributes first = {1}, second = {0.3};
static const cup__sample samples[] = {{"0x5", &first},      {"()", &second},     {"7", &first},
                                      {"2x3x1025", &second}, {"33x1000", &first}, {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072", &first}, {NULL, NULL}};
static const cup__elu_grad_attributes slope_first = {1}, slope_second = {0.3};
static const cup__sample grad_samples[] = {
    {"7 7", &slope_first}, {"2x1025 2x1025", &slope_second}, {NULL, NULL}};

static const cup__sample grad_bench[] = {{"32768x3072 32768x3072", &slope_first}, {NULL, NULL}};

const cup__op cup__op_elu = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = samples,
    .bench = bench,
};

const cup__op cup__op_elu_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = grad_samples,
    .bench = grad_bench,
};
