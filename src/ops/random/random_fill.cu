/* Random numbers: first + second u with u uniform in [0, 1), or with NORMAL first + second n with
 * normal n, by Box and Muller. Which words of the Philox sequence an element takes is said in
 * random_fill.h; the arithmetic is unfused, so that the CPU rounds alike. Grid: pieces of 256
 * units of 16 bytes (of 2 elements for f64). */
#include "philox.cuh"
#include "vec.cuh"

/* Knobs: NORMAL, ALIGNED. */
#if CUP_T == CUP_F64
#define VEC 2
#else
#define VEC (16 / (int)sizeof(T))
#endif

DEVICE float scaled(float first, float second, float x)
{
    return __fadd_rn(first, __fmul_rn(second, x));
}
DEVICE double scaled(double first, double second, double x)
{
    return __dadd_rn(first, __dmul_rn(second, x));
}
DEVICE void circle(float turns, float *sine, float *cosine) { sincospif(2 * turns, sine, cosine); }
DEVICE void circle(double turns, double *sine, double *cosine)
{
    sincospi(2 * turns, sine, cosine);
}
DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE float root_of(float x) { return sqrtf(x); }
DEVICE double root_of(double x) { return sqrt(x); }

/* Uniform numbers from the words of a block: 4 floats or 2 doubles. */
DEVICE void uniform(const philox_words &w, float *u)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        u[i] = philox_uniform(w.at[i]);
}
DEVICE void uniform(const philox_words &w, double *u)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        u[i] = ((double)(w.at[2 * i] >> 5) * 67108864.0 + (double)(w.at[2 * i + 1] >> 6)) *
               0x1p-53;
}

extern "C" __global__ void __launch_bounds__(256)
    random_fill_fwd(T *y, const uint64_t *state, uint32_t sequence, int64_t count, double first,
                    double second)
{
    const int block_elements = CUP_T == CUP_F64 ? 2 : 4;
    int64_t start = ((int64_t)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (start >= count)
        return;
    real u[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i += block_elements)
        uniform(philox_block(state, sequence, (uint64_t)(start + i) / block_elements), u + i);
#if NORMAL
    const real step = CUP_T == CUP_F64 ? (real)0x1p-53 : (real)0x1p-24;
#pragma unroll
    for (int i = 0; i < VEC; i += 2) {
        real sine, cosine, radius = root_of(-2 * log_of(u[i] + step));
        circle(u[i + 1], &sine, &cosine);
        u[i] = radius * cosine;
        u[i + 1] = radius * sine;
    }
#endif
#pragma unroll
    for (int i = 0; i < VEC; i++)
        u[i] = scaled((real)first, (real)second, u[i]);
    if (ALIGNED && start + VEC <= count) {
        store(y + start, from_reals<T, VEC>(u));
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (start + i < count)
            y[start + i] = from_real<T>(u[i]);
}
