#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/elementwise/pointwise.h"

static double gelu(const double *x, const double *a)
{
    (void)a;
    return cup__gelu(x[0]);
}

CUP__FUSED static void gelu_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0];
    for (int64_t i = 0; i < count; i++)
        y[i] = cup__gelu_f32(in[i]);
}

/* (x, dy) -> dy times the derivative of gelu at x. */
static double slope(const double *x, const double *a)
{
    (void)a;
    return x[1] * cup__gelu_slope(x[0]);
}

CUP__FUSED static void slope_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0], *dy = x[1];
    for (int64_t i = 0; i < count; i++)
        y[i] = dy[i] * cup__gelu_slope_f32(in[i]);
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
