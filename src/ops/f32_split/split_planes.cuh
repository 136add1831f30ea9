/* An element of f32 as numbers of 16 bits, see f32_split.cu: two of f16 after scaling, or three of
 * bf16. Uses the knob CUP_T. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_PLANES_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_PLANES_CUH

#include "split_call.cuh"
#include "split_scale.cuh"
#include "vec.cuh"

#define SCALED (CUP_T == CUP_F16)
#define LEAST 0x1p-21f /* of a scaled element, or it has lost too many bits */
#define SMALL 0x1p-13f /* below, a scaled element has lost bits, at most 2^-36 */

/* The power of two by which numbers up to `most` are multiplied. */
DEVICE int exponent_for(float most)
{
    int above = (int)(__float_as_uint(most) >> 23) - 127;
    return most == 0.0f ? 0 : min(14 - above, 126);
}

#if SCALED
/* What the next plane takes of x, which keeps the rest. */
DEVICE unsigned take(float *x)
{
    f16 y = from_real<f16>(*x);
    float rest = (*x - to_real(y)) * 2048.0f;
    *x = is_finite(*x) ? rest : 0.0f;
    return y.bits;
}
#else
DEVICE unsigned take(float *x)
{
    bf16 y = from_real<bf16>(*x);
    if (is_finite(*x) && !is_finite(to_real(y)))
        y.bits--;
    *x = is_finite(*x) ? *x - to_real(y) : 0.0f;
    return y.bits;
}
#endif

/* What was found of elements that are small beside the largest of their row or column. */
struct findings {
    unsigned small;
    bool too_small;

    __device__ __forceinline__ void note(float scaled)
    {
        small += scaled != 0.0f && fabsf(scaled) < SMALL;
        too_small = too_small || (scaled != 0.0f && fabsf(scaled) < LEAST);
    }
};

/* Leaves what the threads of the block have found to the products. */
DEVICE void leave(unsigned *words, const findings &f)
{
    unsigned small = f.small;
    for (int mask = 16; mask > 0; mask /= 2)
        small += __shfl_xor_sync(0xffffffff, small, mask);
    bool too_small = __any_sync(0xffffffff, f.too_small);
    if (threadIdx.x % 32)
        return;
    if (small)
        atomicAdd(words + SPLIT_SMALL, small);
    if (too_small && ((volatile unsigned *)words)[SPLIT_WIDE] == 0)
        atomicOr(words + SPLIT_WIDE, 1u);
}

#endif
