/* x / (1 + e^-x) and its derivative. At -infinity, where the quotient has no value, both are the 0
 * that they tend to, and the derivative at infinity is 1. */
#ifndef CUP_OPS_ACTIVATION_SILU_H
#define CUP_OPS_ACTIVATION_SILU_H

#include <math.h>

#include "base/wide_math.h"

/* Beyond it e^-x, or its inverse, is nothing beside 1 in f32. */
#define CUP__SILU_FAR 200.0f

static inline double cup__silu(double x)
{
    return isinf(x) && x < 0 ? -0.0 : x / (1 + exp(-x));
}

static inline double cup__silu_slope(double x)
{
    double s = 1 / (1 + exp(-x));
    return isinf(x) ? s : s * (1 + x * (1 - s));
}

CUP__IN_LOOP float cup__silu_f32(float x)
{
    float y = x * cup__sigmoid_f32(x);
    return x < -CUP__SILU_FAR ? -0.0f : y;
}

CUP__IN_LOOP float cup__silu_slope_f32(float x)
{
    float s = cup__sigmoid_f32(x), y = s * (1 + x * (1 - s));
    return x < -CUP__SILU_FAR ? 0.0f : x > CUP__SILU_FAR ? 1.0f : y;
}

#endif
