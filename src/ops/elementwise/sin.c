/* Sine and cosine, whose gradients are each other. */
#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(sin_fwd_f64, sin(x[0]))
CUP__ELEMENT(cos_fwd_f64, cos(x[0]))
CUP__ELEMENT(sin_bwd_f64, x[1] * cos(x[0]))
CUP__ELEMENT(cos_bwd_f64, -x[1] * sin(x[0]))

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

static void sin_fwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    near_sin(y, x, count, a);
    correct(y, x[0], count, sinf);
}

static void cos_fwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    near_cos(y, x, count, a);
    correct(y, x[0], count, cosf);
}

static void sin_bwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    cos_fwd_f32(y, x, count, a);
    times(y, (const float *[]){y, x[1]}, count, a);
}

CUP__FLOATS_2(minus_times, -p * q)

static void cos_bwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    sin_fwd_f32(y, x, count, a);
    minus_times(y, (const float *[]){y, x[1]}, count, a);
}

CUP__KERNEL(sin_fwd, sin(x[0]))
CUP__KERNEL(cos_fwd, cos(x[0]))
CUP__KERNEL(sin_bwd, x[1] * cos(x[0]))
CUP__KERNEL(cos_bwd, -x[1] * sin(x[0]))

static cup_tensor *sin_slope(cup_context *c, cup_tensor *x)
{
    return cup_cos(c, x);
}

CUP__UNARY_TWICE(sin, in, -40, 40, -40, 40)

static cup_tensor *cos_slope(cup_context *c, cup_tensor *x)
{
    return cup_neg(c, cup_sin(c, x));
}

CUP__UNARY_TWICE(cos, in, -40, 40, -40, 40)
