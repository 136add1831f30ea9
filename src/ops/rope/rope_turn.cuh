/* The angles of rotary positions. */
#ifndef CUP_OPS_ROPE_ROPE_TURN_CUH
#define CUP_OPS_ROPE_ROPE_TURN_CUH

#include "dtype.cuh"

/* The cosine and sine of `position` times the frequency, which is in radians for double and in
 * whole turns for float: those are taken off before single precision could lose them. */
DEVICE void turn_of(double frequency, long long position, double *cosine, double *sine)
{
    sincos((double)position * frequency, sine, cosine);
}

DEVICE void turn_of(double frequency, long long position, float *cosine, float *sine)
{
    float high = (float)frequency, low = (float)(frequency - high), p = (float)position;
    float product = p * high, rest = __fmaf_rn(p, high, -product) + p * low;
    sincospif(2 * ((product - rintf(product)) + rest), sine, cosine);
}

#endif
