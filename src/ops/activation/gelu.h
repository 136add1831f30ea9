/* 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), and its derivative. 0.5 (1 + tanh u) is
 * the sigmoid of 2u, which does not cancel for negative u. */
#ifndef CUP_OPS_ACTIVATION_GELU_H
#define CUP_OPS_ACTIVATION_GELU_H

#include <math.h>

#include "base/wide_math.h"

#define CUP__GELU_ROOT 0.79788456080286535588 /* sqrt(2/pi) */
#define CUP__GELU_CUBIC 0.044715

static inline double cup__gelu(double x)
{
    return x / (1 + exp(-2 * CUP__GELU_ROOT * (x + CUP__GELU_CUBIC * x * x * x)));
}

static inline double cup__gelu_slope(double x)
{
    double s = 1 / (1 + exp(-2 * CUP__GELU_ROOT * (x + CUP__GELU_CUBIC * x * x * x)));
    return s + 2 * x * s * (1 - s) * CUP__GELU_ROOT * (1 + 3 * CUP__GELU_CUBIC * x * x);
}

CUP__IN_LOOP float cup__gelu_f32(float x)
{
    float u = x * ((float)(-2 * CUP__GELU_ROOT) -
                   (float)(2 * CUP__GELU_ROOT * CUP__GELU_CUBIC) * x * x);
    return x / (1.0f + cup__exp_or_infinity_f32(u));
}

CUP__IN_LOOP float cup__gelu_slope_f32(float x)
{
    float root = (float)CUP__GELU_ROOT, cubic = (float)CUP__GELU_CUBIC;
    float s = cup__sigmoid_f32(2.0f * root * (x + cubic * x * x * x));
    float du = root * (1.0f + 3.0f * cubic * x * x);
    return s + 2.0f * x * s * (1.0f - s) * du;
}

#endif
