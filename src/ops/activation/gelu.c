#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define SQRT_2_PI 0.79788456080286535588
#define CUBIC 0.044715

static double gelu(const double *x, const double *a)
{
    (void)a;
    /* 0.5 (1 + tanh u) is the sigmoid of 2u, which does not cancel for negative u. */
    return x[0] / (1 + exp(-2 * SQRT_2_PI * (x[0] + CUBIC * x[0] * x[0] * x[0])));
}

CUP__FUSED static void gelu_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0];
    for (int64_t i = 0; i < count; i++) {
        float v = in[i];
        float u = v * ((float)(-2 * SQRT_2_PI) - (float)(2 * SQRT_2_PI * CUBIC) * v * v);
        y[i] = v / (1.0f + cup__exp_or_infinity_f32(u));
    }
}

/* (x, dy) -> dy times the derivative of gelu at x. */
static double slope(const double *x, const double *a)
{
    (void)a;
    double v = x[0], s = 1 / (1 + exp(-2 * SQRT_2_PI * (v + CUBIC * v * v * v)));
    return x[1] * (s + 2 * v * s * (1 - s) * SQRT_2_PI * (1 + 3 * CUBIC * v * v));
}

CUP__FUSED static void slope_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0], *dy = x[1];
    for (int64_t i = 0; i < count; i++) {
        float v = in[i];
        float s = cup__sigmoid_f32(2.0f * (float)SQRT_2_PI * (v + (float)CUBIC * v * v * v));
        float du = (float)SQRT_2_PI * (1.0f + 3.0f * (float)CUBIC * v * v);
        y[i] = dy[i] * (s + 2.0f * v * s * (1.0f - s) * du);
    }
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__gelu_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "gelu.cu", .f64 = gelu, .f32 = gelu_f32,
                                    .entry = "gelu_fwd"};
static const cup__pointwise slope_kind = {.source = "gelu.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "gelu_bwd"};
static const cup__sample slope_samples[] = {
    {"7 7", NULL}, {"3x5 3x5", NULL}, {"2x1025 2x1025", NULL}, {NULL, NULL}};

const cup__op cup__op_gelu = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-6, 6}},
    .tolerance = 16, /* for -6, e^-2u carries the rounding of u about 24-fold */
};

const cup__op cup__op_gelu_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = slope_samples,
    .bench = cup__binary_bench,
    .domain = {{-6, 6}},
    .tolerance = 16, /* for -6, e^-2u carries the rounding of u about 24-fold */
};
