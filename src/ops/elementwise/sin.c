/* Sine and cosine, whose gradients are each other. */
#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(sin_of, sin(x[0]))
CUP__ELEMENT(cos_of, cos(x[0]))
CUP__ELEMENT(sin_slope, x[1] * cos(x[0]))
CUP__ELEMENT(cos_slope, -x[1] * sin(x[0]))

CUP__FLOATS_1(near_sin, cup__sin_f32(p))
CUP__FLOATS_1(near_cos, cup__cos_f32(p))
CUP__FLOATS_2(times, p * q)

CUP__WIDE static int any_far(const float *x, int64_t count)
{
    int far = 0;
    for (int64_t i = 0; i < count; i++)
        far |= !(x[i] <= CUP__ANGLE_MOST && x[i] >= -CUP__ANGLE_MOST);
    return far;
}

/* Angles beyond what the short reduction can do, and infinities, go to the C library. */
static void correct(float *y, const float *x, int64_t count, float (*exact)(float))
{
    if (!any_far(x, count))
        return;
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(x[i]) <= CUP__ANGLE_MOST))
            y[i] = exact(x[i]);
}

static void sin_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    near_sin(y, x, count, a);
    correct(y, x[0], count, sinf);
}

static void cos_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    near_cos(y, x, count, a);
    correct(y, x[0], count, cosf);
}

static void sin_slope_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    cos_f32(y, x, count, a);
    times(y, (const float *[]){y, x[1]}, count, a);
}

CUP__FLOATS_2(minus_times, -p * q)

static void cos_slope_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    sin_f32(y, x, count, a);
    minus_times(y, (const float *[]){y, x[1]}, count, a);
}

static cup_status sin_gradient(cup__grad *g)
{
    g->d_in[0] = cup__sin_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static cup_status cos_gradient(cup__grad *g)
{
    g->d_in[0] = cup__cos_grad(g->c, g->in[0], g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise sin_kind = {.source = "sin.cu", .f64 = sin_of, .f32 = sin_f32,
                                        .entry = "sin_fwd"};
static const cup__pointwise cos_kind = {.source = "sin.cu", .knob = "COS", .f64 = cos_of,
                                        .f32 = cos_f32, .entry = "cos_fwd"};
static const cup__pointwise sin_slope_kind = {.source = "sin.cu", .knob = "SIN_GRAD",
                                              .f64 = sin_slope, .f32 = sin_slope_f32,
                                              .entry = "sin_bwd"};
static const cup__pointwise cos_slope_kind = {.source = "sin.cu", .knob = "COS_GRAD",
                                              .f64 = cos_slope, .f32 = cos_slope_f32,
                                              .entry = "cos_bwd"};

const cup__op cup__op_sin = {
    CUP__POINTWISE(&sin_kind),
    .gradient = sin_gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-40, 40}},
};

const cup__op cup__op_cos = {
    CUP__POINTWISE(&cos_kind),
    .gradient = cos_gradient,
    .saves = CUP__SAVE_IN(0),
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{-40, 40}},
};

const cup__op cup__op_sin_grad = {
    CUP__POINTWISE(&sin_slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-40, 40}, {-2, 2}},
};

const cup__op cup__op_cos_grad = {
    CUP__POINTWISE(&cos_slope_kind),
    .samples = cup__grad_samples,
    .bench = cup__grad_bench,
    .domain = {{-40, 40}, {-2, 2}},
};
