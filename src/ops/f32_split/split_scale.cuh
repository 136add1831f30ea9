/* Powers of two by which elements of f32 are scaled before they are cut. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_SCALE_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_SCALE_CUH

#include "dtype.cuh"

DEVICE bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000) != 0x7f800000;
}

DEVICE float power_of_two(int exponent)
{
    return __uint_as_float((unsigned)(exponent + 127) << 23);
}

#endif
