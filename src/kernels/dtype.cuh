/* Element types. The knob CUP_T, a cup_dtype value, makes `T`, how an element lies in memory, and
 * `real`, what it is computed in: float for f32, f16, bf16 and the fp8 types, double for f64, the
 * type itself for integers and bool.
 *
 *     to_real(x)                     T -> real, exact
 *     from_real<T>(r)                real -> T, rounded to nearest even; e4m3 saturates, as it has
 *                                    no infinity
 *     convert<To>(x)                 any element or number to any other, rounded once
 * Vectors of elements are in vec.cuh, which comes with this file. */
#ifndef CUP_DTYPE_CUH
#define CUP_DTYPE_CUH

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#define DEVICE static __device__ __forceinline__

/* The values of cup_dtype. */
#define CUP_F32 0
#define CUP_F64 1
#define CUP_F16 2
#define CUP_BF16 3
#define CUP_I64 4
#define CUP_I32 5
#define CUP_U8 6
#define CUP_BOOL 7
#define CUP_I8 8
#define CUP_F8E4M3 9
#define CUP_F8E5M2 10

/* CUP_PLAIN_CONVERSIONS makes every card take the integer code of those that lack an instruction,
 * so that it can be tested on a new card. */
#ifndef CUP_PLAIN_CONVERSIONS
#define CUP_PLAIN_CONVERSIONS 0
#endif
#if defined(__CUDA_ARCH__) && !CUP_PLAIN_CONVERSIONS
#define CUP_HAS_BF16 (__CUDA_ARCH__ >= 800)
#define CUP_HAS_FP8 (__CUDA_ARCH__ >= 890)
#else
#define CUP_HAS_BF16 0
#define CUP_HAS_FP8 0
#endif

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct f8e4m3 {
    uint8_t bits;
};
struct f8e5m2 {
    uint8_t bits;
};

template <int Dtype> struct dtype_of;
template <> struct dtype_of<CUP_F32> { typedef float type; };
template <> struct dtype_of<CUP_F64> { typedef double type; };
template <> struct dtype_of<CUP_F16> { typedef f16 type; };
template <> struct dtype_of<CUP_BF16> { typedef bf16 type; };
template <> struct dtype_of<CUP_I64> { typedef int64_t type; };
template <> struct dtype_of<CUP_I32> { typedef int32_t type; };
template <> struct dtype_of<CUP_U8> { typedef uint8_t type; };
template <> struct dtype_of<CUP_BOOL> { typedef bool type; };
template <> struct dtype_of<CUP_I8> { typedef int8_t type; };
template <> struct dtype_of<CUP_F8E4M3> { typedef f8e4m3 type; };
template <> struct dtype_of<CUP_F8E5M2> { typedef f8e5m2 type; };

template <typename Element> struct real_of { typedef Element type; };
template <> struct real_of<f16> { typedef float type; };
template <> struct real_of<bf16> { typedef float type; };
template <> struct real_of<f8e4m3> { typedef float type; };
template <> struct real_of<f8e5m2> { typedef float type; };

#ifdef CUP_T
typedef dtype_of<CUP_T>::type T;
typedef real_of<T>::type real;
#endif

/* To what is computed in. Element bool may hold any byte; what is not 0 is true. */
DEVICE float to_real(float x) { return x; }
DEVICE double to_real(double x) { return x; }
DEVICE int64_t to_real(int64_t x) { return x; }
DEVICE int32_t to_real(int32_t x) { return x; }
DEVICE uint8_t to_real(uint8_t x) { return x; }
DEVICE int8_t to_real(int8_t x) { return x; }
DEVICE bool to_real(bool x) { return *(const uint8_t *)&x != 0; }

DEVICE float to_real(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

DEVICE float to_real(f16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

/* Every e5m2 is the upper byte of an f16. */
DEVICE float to_real(f8e5m2 x)
{
    f16 wide = {(uint16_t)(x.bits << 8)};
    return to_real(wide);
}

DEVICE float to_real(f8e4m3 x)
{
#if CUP_HAS_FP8
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)x.bits));
    f16 wide = {(uint16_t)pair};
    return to_real(wide);
#else
    /* Scaling by 2^120 moves the exponent and makes subnormals normal. */
    uint32_t magnitude = x.bits & 0x7f, sign = (uint32_t)(x.bits & 0x80) << 24;
    float y = __uint_as_float(magnitude << 20) * 0x1p120f;
    return __uint_as_float((magnitude == 0x7f ? 0x7fc00000u : __float_as_uint(y)) | sign);
#endif
}

/* From float, to nearest even. */
DEVICE void from_float(float x, float *y) { *y = x; }

DEVICE void from_float(float x, f16 *y)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
}

DEVICE void from_float(float x, bf16 *y)
{
#if CUP_HAS_BF16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
    uint32_t bits = __float_as_uint(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    y->bits = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
#endif
}

/* One fp8 format in plain code: Fraction bits, the least exponent of a normal number, and from
 * where on a size becomes which byte. */
template <int Fraction, int Least> DEVICE uint8_t to_fp8(float x, float most, uint8_t most_byte)
{
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    float size = __uint_as_float(magnitude);
    const int drop = 23 - Fraction;
    uint32_t byte;
    if (magnitude > 0x7f800000)
        byte = 0x7f;
    else if (size >= most)
        byte = most_byte;
    else if (magnitude < (uint32_t)(Least + 127) << 23)
        byte = (uint32_t)__float2int_rn(size * (float)(1 << (Fraction - Least)));
    else
        byte = ((magnitude + ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1)) >> drop) -
               ((uint32_t)(Least + 126) << Fraction);
    return (uint8_t)(sign | byte);
}

DEVICE void from_float(float x, f8e4m3 *y)
{
#if CUP_HAS_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    y->bits = (uint8_t)pair;
#else
    y->bits = to_fp8<3, -6>(x, 448.0f, 0x7e);
#endif
}

DEVICE void from_float(float x, f8e5m2 *y)
{
#if CUP_HAS_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    y->bits = (uint8_t)pair;
    if (fabsf(x) >= 61440.0f) /* halfway to where the next number would be */
        y->bits = (uint8_t)((__float_as_uint(x) >> 24 & 0x80) | 0x7c);
#else
    y->bits = to_fp8<2, -14>(x, 61440.0f, 0x7c);
#endif
}

template <typename Element> DEVICE Element from_real(typename real_of<Element>::type x)
{
    return x;
}
template <> __device__ __forceinline__ f16 from_real<f16>(float x)
{
    f16 y;
    from_float(x, &y);
    return y;
}
template <> __device__ __forceinline__ bf16 from_real<bf16>(float x)
{
    bf16 y;
    from_float(x, &y);
    return y;
}
template <> __device__ __forceinline__ f8e4m3 from_real<f8e4m3>(float x)
{
    f8e4m3 y;
    from_float(x, &y);
    return y;
}
template <> __device__ __forceinline__ f8e5m2 from_real<f8e5m2>(float x)
{
    f8e5m2 y;
    from_float(x, &y);
    return y;
}

/* Rounding twice is right when the first time is to odd: what was cut off leaves its trace in the
 * last bit. */
DEVICE float to_odd_float(double x)
{
    float y = __double2float_rz(x);
    return (double)y == x ? y : __uint_as_float(__float_as_uint(y) | 1);
}

DEVICE float to_odd_float(int64_t x)
{
    float y = __ll2float_rz(x);
    return (int64_t)y == x ? y : __uint_as_float(__float_as_uint(y) | 1);
}

/* Every pair of types. Floats to integers are cut towards zero; what does not fit gives the
 * nearest integer that does, NaN gives 0. Integers keep the low bits. */
template <typename To, typename From> struct converter {
    static __device__ __forceinline__ To run(From x) { return (To)to_real(x); }
};
template <typename To, typename From> struct to_integer {
    /* The hardware saturates, but knows bytes only as the low bits of larger numbers. */
    template <typename Float> static __device__ __forceinline__ To cut(Float x)
    {
        if (x != x)
            return 0;
        if (sizeof(To) > 1)
            return (To)x;
        const int least = (To)-1 < (To)0 ? -128 : 0, most = least + 255;
        return x < least ? (To)least : x > most ? (To)most : (To)(int)x;
    }
    static __device__ __forceinline__ To fit(float x) { return cut(x); }
    static __device__ __forceinline__ To fit(double x) { return cut(x); }
    template <typename Integer> static __device__ __forceinline__ To fit(Integer x)
    {
        return (To)x;
    }
    static __device__ __forceinline__ To run(From x) { return fit(to_real(x)); }
};
template <typename From> struct converter<int64_t, From> : to_integer<int64_t, From> {};
template <typename From> struct converter<int32_t, From> : to_integer<int32_t, From> {};
template <typename From> struct converter<uint8_t, From> : to_integer<uint8_t, From> {};
template <typename From> struct converter<int8_t, From> : to_integer<int8_t, From> {};
template <typename From> struct converter<bool, From> {
    static __device__ __forceinline__ bool run(From x) { return to_real(x) != 0; }
};
template <typename To, typename From> struct to_small {
    static __device__ __forceinline__ To narrow(float x) { return from_real<To>(x); }
    static __device__ __forceinline__ To narrow(double x) { return from_real<To>(to_odd_float(x)); }
    static __device__ __forceinline__ To narrow(int64_t x)
    {
        return from_real<To>(to_odd_float(x));
    }
    static __device__ __forceinline__ To narrow(int32_t x) { return narrow((int64_t)x); }
    static __device__ __forceinline__ To narrow(uint8_t x) { return from_real<To>((float)x); }
    static __device__ __forceinline__ To narrow(int8_t x) { return from_real<To>((float)x); }
    static __device__ __forceinline__ To narrow(bool x) { return from_real<To>(x ? 1.0f : 0.0f); }
    static __device__ __forceinline__ To run(From x) { return narrow(to_real(x)); }
};
template <typename From> struct converter<f16, From> : to_small<f16, From> {};
template <typename From> struct converter<bf16, From> : to_small<bf16, From> {};
template <typename From> struct converter<f8e4m3, From> : to_small<f8e4m3, From> {};
template <typename From> struct converter<f8e5m2, From> : to_small<f8e5m2, From> {};

template <typename To, typename From> DEVICE To convert(From x)
{
    return converter<To, From>::run(x);
}

#include "vec.cuh"

#endif
