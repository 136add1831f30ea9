/* Weights of 8 or 4 bits (BITS) from floats and back. pack_fwd: a warp a group of a row finds the
 * scale, from the group's largest element, or for 4 bits that are not SYMMETRIC from its least and
 * largest, and rounds. All in single precision, divided exactly, so that every machine finds the
 * same numbers. unpack_fwd: a thread makes VEC elements of one group. */
#include "packed_call.cuh"
#include "reduce.cuh"
#include "vec.cuh"

#ifndef SCALE_T
#define SCALE_T 0
#endif
/* A knob: BITS. */
#ifndef SYMMETRIC
#define SYMMETRIC 1
#endif
#ifndef VEC
#define VEC 8
#endif

typedef dtype_of<SCALE_T>::type scale_type;

/* Which number stands for x. */
DEVICE int number_of(float x, float scale, int zero)
{
    if (scale == 0.0f || x != x)
        return zero;
    float y = rintf(__fdiv_rn(x, scale)) + (float)zero;
    const float least = BITS == 8 ? -127.0f : 0.0f, most = BITS == 8 ? 127.0f : 15.0f;
    return (int)fminf(fmaxf(y, least), most);
}

extern "C" __global__ void __launch_bounds__(256)
    pack_fwd(const __grid_constant__ packed_call c, const T *w)
{
    long long at = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (at >= c.n * c.groups)
        return;
    const T *from = w + at * c.group;
    float least = 0, most = 0;
    for (long long i = threadIdx.x % 32; i < c.group; i += 32) {
        float x = convert<float>(from[i]);
        least = fminf(least, x);
        most = fmaxf(most, x);
    }
    least = warp_reduce(least, min_op());
    most = warp_reduce(most, max_op());
    float scale, size = fmaxf(most, -least);
    int zero = BITS == 8 ? 0 : 8;
    if (SYMMETRIC) {
        scale = __fdiv_rn(size, BITS == 8 ? 127.0f : 7.0f);
    } else {
        scale = __fdiv_rn(__fsub_rn(most, least), 15.0f);
        zero = scale == 0.0f ? 0 : (int)fminf(rintf(__fdiv_rn(-least, scale)), 15.0f);
    }
    if (threadIdx.x % 32 == 0) {
        ((float *)c.scale)[at] = scale;
        if (BITS == 4)
            c.zero[at] = (unsigned char)zero;
    }
    if (BITS == 8) {
        for (long long i = threadIdx.x % 32; i < c.group; i += 32)
            ((signed char *)c.weight)[at * c.group + i] =
                (signed char)number_of(convert<float>(from[i]), scale, 0);
    } else {
        for (long long i = threadIdx.x % 32; i < c.group / 2; i += 32) {
            int low = number_of(convert<float>(from[2 * i]), scale, zero);
            int high = number_of(convert<float>(from[2 * i + 1]), scale, zero);
            ((unsigned char *)c.weight)[at * c.group / 2 + i] = (unsigned char)(low | high << 4);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    unpack_fwd(const __grid_constant__ packed_call c, T *w)
{
    long long at = ((long long)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (at >= c.n * c.k)
        return;
    long long group = at / c.group;
    real scale = convert<real>(((const scale_type *)c.scale)[group]);
    int zero = BITS == 8 ? 0 : c.zero ? c.zero[group] : 8;
    vec<T, VEC> to;
    if (BITS == 8) {
        vec<int8_t, VEC> from = load<VEC>((const int8_t *)c.weight + at);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            to.at[i] = convert<T>(scale * (real)from.at[i]);
    } else {
        vec<uint8_t, (VEC + 1) / 2> from = load<(VEC + 1) / 2>((const uint8_t *)c.weight + at / 2);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            int half = VEC == 1 ? (int)(at % 2) : i % 2;
            to.at[i] = convert<T>(scale * (real)((from.at[i / 2] >> half * 4 & 15) - zero));
        }
    }
    store(w + at, to);
}
