#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

/* With w = e^x and n = w (w + 2), tanh(ln(1 + w)) is n / (n + 2); beyond 20 that is 1. */
static double mish_of(double x)
{
    double w = exp(x), n = w * (w + 2);
    return x > 20 ? x : x * n / (n + 2);
}

static double slope_of(double x)
{
    double w = exp(x), n = w * (w + 2);
    return x > 20 ? 1 : n / (n + 2) + x * 4 * w * (w + 1) / ((n + 2) * (n + 2));
}

static inline float mish_of_f32(float x)
{
    float w = cup__exp_f32(x > 20.0f ? 20.0f : x), n = w * (w + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}

static inline float slope_of_f32(float x)
{
    float w = cup__exp_f32(x > 20.0f ? 20.0f : x), n = w * (w + 2.0f);
    float slope = n / (n + 2.0f) + x * (4.0f * w * (w + 1.0f) / ((n + 2.0f) * (n + 2.0f)));
    return x > 20.0f ? 1.0f : slope;
}

CUP__ELEMENT(mish_fwd_f64, mish_of(x[0]))
CUP__FLOATS_1(mish_fwd_f32, mish_of_f32(p))

CUP__ELEMENT(mish_bwd_f64, x[1] * slope_of(x[0]))
CUP__FLOATS_2(mish_bwd_f32, q * slope_of_f32(p))

static const cup__pointwise mish_fwd_kind = {
    .source = "mish.cu", .f64 = mish_fwd_f64, .f32 = mish_fwd_f32, .entry = "mish_fwd"};
static const cup__pointwise mish_bwd_kind = {.source = "mish.cu", .knob = "GRAD",
                                             .f64 = mish_bwd_f64, .f32 = mish_bwd_f32,
                                             .entry = "mish_bwd"};
static cup_tensor *mish_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *t = cup_tanh(c, cup_softplus(c, x));
    cup_tensor *rest = cup_sub(c, cup__number(c, x, 1), cup_mul(c, t, t));
    return cup_add(c, t, cup_mul(c, cup_mul(c, x, rest), cup_sigmoid(c, x)));
}

/* For -12, e^x carries the rounding of x 12-fold. */
CUP__UNARY_TWICE(mish, in, -12, 12, -12, 12, .tolerance = 16)
