/* Functions that elementwise ops share, for float and double. With SHORT_MATH, which goes with
 * results of 16 bits or less, float takes short forms: of the hardware, good to 2^-20 or so except
 * where said. */
#ifndef CUP_REAL_MATH_CUH
#define CUP_REAL_MATH_CUH

#include "dtype.cuh"

#ifndef SHORT_MATH
#define SHORT_MATH 0
#endif

/* e^(x ln 2) in one instruction; subnormals count as 0. */
DEVICE float exp2_short(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, to one unit in the last place; subnormals count as 0. */
DEVICE float reciprocal_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float quotient_of(float x, float y)
{
#if SHORT_MATH
    float q;
    asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(x), "f"(y));
    return q;
#else
    return x / y;
#endif
}

DEVICE float exp_of(float x)
{
#if SHORT_MATH
    return exp2_short(x * 1.44269504f);
#else
    return expf(x);
#endif
}

DEVICE float log_of(float x)
{
#if SHORT_MATH
    return __logf(x);
#else
    return logf(x);
#endif
}

DEVICE float sqrt_of(float x)
{
#if SHORT_MATH
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sqrtf(x);
#endif
}

/* The short form is good to 2^-11. */
DEVICE float tanh_of(float x)
{
#if SHORT_MATH
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return tanhf(x);
#endif
}

/* The part of the normal distribution below x. The short form is a sigmoid of an odd polynomial
 * that was fitted to the logarithm of the odds, good to 2^-10. */
DEVICE float normal_below(float x)
{
#if SHORT_MATH
    float z = x * x, p = -3.35285e-10f;
    p = p * z + 4.582327e-8f;
    p = p * z - 2.277966e-6f;
    p = p * z + 3.949333e-5f;
    p = p * z + 8.497256e-4f;
    p = p * z - 1.06779655e-1f;
    p = p * z - 2.300928e+0f;
    return reciprocal_of(1.0f + exp2_short(p * x));
#else
    return 0.5f * erfcf(-0.707106781f * x);
#endif
}

DEVICE double quotient_of(double x, double y) { return x / y; }
DEVICE double exp_of(double x) { return exp(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE double sqrt_of(double x) { return sqrt(x); }
DEVICE double tanh_of(double x) { return tanh(x); }
DEVICE double reciprocal_of(double x) { return 1.0 / x; }
DEVICE double normal_below(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }

/* ln(1 + e^x) */
DEVICE float softplus_of(float x)
{
    float e = exp_of(x > 0 ? -x : x);
    return (x > 0 ? x : 0) + log1pf(e);
}

DEVICE double softplus_of(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x));
}

/* 1 / (1 + e^-x), right for an e^-x that is infinite. */
template <typename Real> DEVICE Real sigmoid_of(Real x)
{
    return reciprocal_of(1 + exp_of(-x));
}

/* The derivative of x normal_below(x). */
template <typename Real> DEVICE Real gelu_erf_slope_of(Real x)
{
    Real density = (Real)0.39894228040143267794 * exp_of((Real)-0.5 * x * x);
    return normal_below(x) + x * density;
}

/* x min(max(x + 3, 0), 6) / 6 */
template <typename Real> DEVICE Real hardswish_of(Real x)
{
    Real part = x + 3;
    part = part < 0 ? (Real)0 : part > 6 ? (Real)6 : part;
    return x * part * (Real)(1.0 / 6);
}

/* The nearest finite number; of NaN any. */
DEVICE float above_infinity(float x) { return fmaxf(x, -0x1.fffffep127f); }
DEVICE double above_infinity(double x) { return fmax(x, -0x1.fffffffffffffp1023); }
DEVICE float finite_of(float x) { return fminf(above_infinity(x), 0x1.fffffep127f); }
DEVICE double finite_of(double x) { return fmin(above_infinity(x), 0x1.fffffffffffffp1023); }

/* x / (1 + e^-x), and its limit 0 at -infinity. */
template <typename Real> DEVICE Real silu_of(Real x)
{
    return above_infinity(x) * sigmoid_of(x);
}

/* Its derivative, and that one's limits. */
template <typename Real> DEVICE Real silu_slope_of(Real x)
{
    Real s = sigmoid_of(x);
    return s * (1 + finite_of(x) * (1 - s));
}

#define SQRT_2_PI 0.79788456080286535588
#define GELU_CUBIC 0.044715

/* 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the sigmoid does not
 * cancel for negative u. */
template <typename Real> DEVICE Real gelu_of(Real x)
{
    return x * sigmoid_of(2 * (Real)SQRT_2_PI * x * (1 + (Real)GELU_CUBIC * x * x));
}

template <typename Real> DEVICE Real gelu_slope_of(Real x)
{
    Real s = sigmoid_of(2 * (Real)SQRT_2_PI * x * (1 + (Real)GELU_CUBIC * x * x));
    return s + 2 * x * s * (1 - s) * ((Real)SQRT_2_PI * (1 + 3 * (Real)GELU_CUBIC * x * x));
}

/* The same for the epilogues of wgmma with results of 16 bits, in as few instructions as there are:
 * an exponential and a reciprocal, good to 2^-15 of themselves down to 2^-125. A tanh.approx would
 * be one instruction less, but is good to 2^-11 of 1, so that tails would be 0.
 *
 * Those that are called scaled take x times a constant with which the exponent of 2 has one factor
 * less; the reciprocal takes it out again. A bias brings that constant for nothing. */
#define GELU_SCALE 0.46866869f /* the cube root of what stands at x^3 in the exponent */
#define SILU_SCALE 1.44269504f

DEVICE float gelu_scaled(float u)
{
    float e = exp2_short(-u * (4.9122295f + u * u));
    return u * reciprocal_of(GELU_SCALE + GELU_SCALE * e);
}

DEVICE float silu_scaled(float u)
{
    return above_infinity(u) * reciprocal_of(SILU_SCALE + SILU_SCALE * exp2_short(-u));
}

DEVICE float gelu_sigmoid_short(float x)
{
    return reciprocal_of(1.0f + exp2_short(x * (-2.3022082f - 0.10294324f * (x * x))));
}

DEVICE float gelu_slope_short(float x)
{
    float s = gelu_sigmoid_short(x);
    return s + x * (s - s * s) * (1.5957691f + 0.21406444f * (x * x));
}

DEVICE float sigmoid_short(float x)
{
    return reciprocal_of(1.0f + exp2_short(-1.44269504f * x));
}

DEVICE float silu_short(float x)
{
    return above_infinity(x) * sigmoid_short(x);
}

DEVICE float silu_slope_short(float x)
{
    float s = sigmoid_short(x);
    return s * (1.0f + finite_of(x) * (1.0f - s));
}

#endif
