/* The usual functions for single precision as branch-free code that the compiler vectorises:
 * range reduction and a polynomial, a few units in the last place off. */
#ifndef CUP_BASE_WIDE_MATH_H
#define CUP_BASE_WIDE_MATH_H

#include "base/half.h"
#include "base/wide.h"

/* e^r 2^exponent: Taylor's polynomial for |r| <= ln(2)/2, and the power of two is applied in two
 * steps so that subnormals come out. */
CUP__IN_LOOP float cup__exp_scaled_f32(float r, int32_t exponent)
{
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t half = exponent >> 1;
    float first = cup__float((uint32_t)(half + 127) << 23);
    float second = cup__float((uint32_t)(exponent - half + 127) << 23);
    return p * first * second;
}

/* e^x; 0 below -104, infinity above 88.73, NaN for NaN. */
CUP__IN_LOOP float cup__exp_f32(float x)
{
    float clamped = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    float n = clamped * 1.44269504f + 12582912.0f;
    int32_t exponent = (int32_t)(cup__bits(n) - cup__bits(12582912.0f));
    n -= 12582912.0f;
    float r = clamped - n * 0.693145752f - n * 1.42860677e-6f;
    float y = cup__exp_scaled_f32(r, exponent);
    return x != x ? x : y;
}

/* The same for x up to 0, or NaN, in half the steps; 0 below -87. */
CUP__IN_LOOP float cup__exp_below_f32(float x)
{
    float least = x < -87.0f ? -87.0f : x;
    float n = least * 1.44269504f + 12582912.0f;
    uint32_t exponent = (cup__bits(n) - cup__bits(12582912.0f)) << 23;
    n -= 12582912.0f;
    float r = least - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    float y = cup__float(cup__bits(p) + exponent);
    y = x < -87.0f ? 0.0f : y;
    return x != x ? x : y;
}

/* The same for any x, infinity above 88. */
CUP__IN_LOOP float cup__exp_or_infinity_f32(float x)
{
    float y = cup__exp_below_f32(x > 88.0f ? 88.0f : x);
    return x > 88.0f ? __builtin_inff() : y;
}

/* x as m 2^exponent with m in [sqrt(1/2), sqrt(2)); log(m) is an odd series in s = (m-1)/(m+1),
 * 2 s + rest. */
typedef struct cup__log_parts {
    float exponent, s, rest;
} cup__log_parts;

CUP__IN_LOOP cup__log_parts cup__log_parts_f32(float x)
{
    float normal = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float shift = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t bits = cup__bits(normal) - 0x3f3504f3;
    float exponent = (float)((int32_t)bits >> 23) + shift;
    float m = cup__float((bits & 0x7fffff) + 0x3f3504f3);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.24279078841f;
    p = p * z + 0.28498786688f;
    p = p * z + 0.40000972152f;
    p = p * z + 0.66666662693f;
    return (cup__log_parts){exponent, s, s * z * p};
}

/* -infinity at 0, NaN below. */
CUP__IN_LOOP float cup__log_edges_f32(float x, float y)
{
    y = x == 0.0f ? -__builtin_inff() : y;
    y = x > 3.40282347e38f ? x : y;
    return x < 0.0f || x != x ? __builtin_nanf("") : y;
}

/* Natural logarithm. */
CUP__IN_LOOP float cup__log_f32(float x)
{
    cup__log_parts l = cup__log_parts_f32(x);
    float y = l.exponent * 0.693359375f + (2.0f * l.s + (l.rest + l.exponent * -2.12194440e-4f));
    return cup__log_edges_f32(x, y);
}

/* 2^x; 0 below -150, infinity from 128 on, NaN for NaN; whole powers are exact. */
CUP__IN_LOOP float cup__exp2_f32(float x)
{
    float clamped = x < -151.0f ? -151.0f : x > 129.0f ? 129.0f : x;
    float n = clamped + 12582912.0f;
    int32_t exponent = (int32_t)(cup__bits(n) - cup__bits(12582912.0f));
    float r = (clamped - (n - 12582912.0f)) * 0.693147181f;
    float y = cup__exp_scaled_f32(r, exponent);
    return x != x ? x : y;
}

/* Logarithm to base 2, as cup__log_f32; of whole powers it is exact. */
CUP__IN_LOOP float cup__log2_f32(float x)
{
    cup__log_parts l = cup__log_parts_f32(x);
    return cup__log_edges_f32(x, l.exponent + (2.0f * l.s + l.rest) * 1.44269504f);
}

/* log(1 + x): the rounding of 1 + x is made good by the quotient x / ((1 + x) - 1). */
CUP__IN_LOOP float cup__log1p_f32(float x)
{
    float sum = 1.0f + x, rounded = sum - 1.0f;
    float y = cup__log_f32(sum) * (x / rounded);
    return rounded == 0.0f || x > 3.40282347e38f ? x : y;
}

/* tanh x, from e^2|x| for large |x| and from an odd polynomial fraction near 0, where the other
 * form would cancel. */
CUP__IN_LOOP float cup__tanh_f32(float x)
{
    float magnitude = cup__float(cup__bits(x) & 0x7fffffff);
    float e = cup__exp_f32(2.0f * (magnitude > 10.0f ? 10.0f : magnitude));
    float large = 1.0f - 2.0f / (e + 1.0f);
    float z = x * x;
    /* The continued fraction of tanh, cut after seven terms. */
    float top = ((z + 378.0f) * z + 17325.0f) * z + 135135.0f;
    float bottom = ((28.0f * z + 3150.0f) * z + 62370.0f) * z + 135135.0f;
    float small = magnitude * top / bottom;
    float y = magnitude < 0.6f ? small : large;
    y = cup__float(cup__bits(y) | (cup__bits(x) & 0x80000000));
    return x != x ? x : y;
}

/* The error function for |x| < 0.91, an odd polynomial. */
CUP__IN_LOOP float cup__erf_near_0(float x)
{
    float z = x * x;
    float p = 8.3703171e-5f;
    p = p * z - 8.1427566e-4f;
    p = p * z + 5.2010370e-3f;
    p = p * z - 2.6859400e-2f;
    p = p * z + 1.1283696e-1f;
    p = p * z - 3.7612634e-1f;
    return (p * z + 1.1283792f) * x;
}

/* e^(x^2) (1 - erf x) for x > 0.88: a polynomial in 1 / (1 + 0.4 x). */
CUP__IN_LOOP float cup__erfcx_far(float x)
{
    float t = 1.0f / (1.0f + 0.4f * x);
    float p = -1.16273009e-1f;
    p = p * t + 2.43620892e-1f;
    p = p * t + 8.26580045e-3f;
    p = p * t + 2.13037558e-1f;
    p = p * t + 1.98789510e-1f;
    p = p * t + 2.26691029e-1f;
    return (p * t + 2.25627139e-1f) * t;
}

CUP__IN_LOOP float cup__erf_f32(float x)
{
    float magnitude = cup__float(cup__bits(x) & 0x7fffffff);
    float far = 1.0f - cup__exp_f32(-magnitude * magnitude) * cup__erfcx_far(magnitude);
    float y = magnitude < 0.9f ? cup__erf_near_0(magnitude) : far;
    y = cup__float(cup__bits(y) | (cup__bits(x) & 0x80000000));
    return x != x ? x : y;
}

/* The part of the normal distribution below x, without cancelling for negative x. */
CUP__IN_LOOP float cup__normal_below_f32(float x)
{
    float z = cup__float(cup__bits(x) & 0x7fffffff) * 0.707106781f;
    float above = 0.5f * cup__exp_f32(-0.5f * x * x) * cup__erfcx_far(z);
    float far = x < 0.0f ? above : 1.0f - above;
    float near = 0.5f + 0.5f * cup__erf_near_0(x * 0.707106781f);
    float y = z < 0.9f ? near : far;
    return x != x ? x : y;
}

/* Sine and cosine of `quarter` right angles plus x, for |x| <= pi/4: Taylor's polynomials. */
CUP__IN_LOOP void cup__sincos_quarter(float x, int32_t quarter, float *sine, float *cosine)
{
    float z = x * x;
    float s = 2.7557319e-6f;
    s = s * z - 1.9841270e-4f;
    s = s * z + 8.3333333e-3f;
    s = s * z - 1.6666667e-1f;
    s = s * z * x + x;
    float c = -2.7557319e-7f;
    c = c * z + 2.4801587e-5f;
    c = c * z - 1.3888889e-3f;
    c = c * z + 4.1666667e-2f;
    c = c * z - 0.5f;
    c = c * z + 1.0f;
    float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

/* Brings x to within pi/4 of a multiple of pi/2, in double; the two terms of pi/2 are exact enough
 * for |x| up to CUP__ANGLE_MOST. */
#define CUP__ANGLE_MOST 1e8f
CUP__IN_LOOP float cup__reduce_angle(float x, int32_t *quarter)
{
    double n = (double)x * 0.63661977236758134308 + 6755399441055744.0;
    uint64_t bits;
    memcpy(&bits, &n, sizeof bits);
    n -= 6755399441055744.0;
    *quarter = (int32_t)(uint32_t)bits;
    return (float)(((double)x - n * 1.57079632679489655800) - n * 6.12323399573676603587e-17);
}

CUP__IN_LOOP float cup__sin_f32(float x)
{
    int32_t quarter;
    float sine, cosine, r = cup__reduce_angle(x, &quarter);
    cup__sincos_quarter(r, quarter, &sine, &cosine);
    return sine;
}

CUP__IN_LOOP float cup__cos_f32(float x)
{
    int32_t quarter;
    float sine, cosine, r = cup__reduce_angle(x, &quarter);
    cup__sincos_quarter(r, quarter, &sine, &cosine);
    return cosine;
}

/* Sine and cosine of a number of whole turns in [0, 1]. */
CUP__IN_LOOP void cup__sincos_turns(float turns, float *sine, float *cosine)
{
    int32_t quarter = (int32_t)(turns * 4.0f + 0.5f);
    cup__sincos_quarter((turns - 0.25f * (float)quarter) * 6.28318531f, quarter, sine, cosine);
}

/* e^x - 1, from the tanh of x/2, which is exact enough near 0. */
CUP__IN_LOOP float cup__expm1_f32(float x)
{
    float t = cup__tanh_f32(0.5f * x);
    float near = 2.0f * t / (1.0f - t);
    float far = cup__exp_f32(x) - 1.0f;
    return x > -1.0f && x < 1.0f ? near : far;
}

/* log(1 + e^x): the rounding of 1 + e is made good by the quotient e / ((1 + e) - 1). */
CUP__IN_LOOP float cup__softplus_f32(float x)
{
    float e = cup__exp_f32(x > 0.0f ? -x : x), sum = 1.0f + e, rounded = sum - 1.0f;
    float y = rounded == 0.0f ? e : cup__log_f32(sum) * (e / rounded);
    return x > 0.0f ? x + y : x != x ? x : y;
}

/* 1 / (1 + e^-x) */
CUP__IN_LOOP float cup__sigmoid_f32(float x)
{
    return 1.0f / (1.0f + cup__exp_f32(-x));
}

#endif
