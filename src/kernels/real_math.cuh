/* Functions that elementwise ops share, for float and double. With SHORT_MATH, which goes with
 * results of 16 bits or less, float takes the hardware's short forms, good to 2^-20 or so. */
#ifndef CUP_REAL_MATH_CUH
#define CUP_REAL_MATH_CUH

#include "dtype.cuh"

#ifndef SHORT_MATH
#define SHORT_MATH 0
#endif

/* 1 / x, to one unit in the last place; subnormals count as 0. */
DEVICE float reciprocal_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE double reciprocal_of(double x)
{
    return 1.0 / x;
}

DEVICE float exp_of(float x)
{
#if SHORT_MATH
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
#else
    return expf(x);
#endif
}

DEVICE double exp_of(double x)
{
    return exp(x);
}

/* 1 / (1 + e^-x), right for an e^-x that is infinite. */
template <typename Real> DEVICE Real sigmoid_of(Real x)
{
    return reciprocal_of(1 + exp_of(-x));
}

#endif
