/* How wgmma.cu makes codes of 8 bits of what it stores: over a scale that is known before,
 * and noting the largest size, of which the next scale can be made. Uses that file's knobs. */
#ifndef CUP_OPS_MATMUL_WGMMA_CODES_CUH
#define CUP_OPS_MATMUL_WGMMA_CODES_CUH

#include "hopper.cuh"
#include "wgmma_call.cuh"
#include "wgmma_other.cuh"

#define CODES (Y_T == CUP_F8E4M3 || Y_T == CUP_F8E5M2)

struct coder {
    unsigned most; /* bits of a float without sign, which are ordered as floats are, NaN last */
    float factor;

    /* Eight values as `completed` gives them, from row `row` and the one 8 below. */
    __device__ __forceinline__ void take(const wgmma_call &c, int row, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (row + i / 2 % 2 * 8 < c.m)
                most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
            v[i] *= factor;
        }
    }

    /* By all threads of a warp, at the end. */
    __device__ __forceinline__ void tell(const wgmma_call &c) const
    {
        unsigned all = __reduce_max_sync(0xffffffffu, most);
        if (lane() == 0)
            atomicMax(c.y_most, all);
    }
};

#if CODES

/* Two codes side by side. */
DEVICE uint32_t coded(float low, float high)
{
    uint16_t pair;
#if Y_T == CUP_F8E4M3
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

/* Of sixteen columns, two rows and two pairs each. */
DEVICE void stage_codes(uint32_t buffer, int column, const float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t to = staged_at(buffer, lane() / 4 + i % 2 * 8, column / 16);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i / 2 * 8 + lane() % 4 * 2),
                     "h"((uint16_t)coded(v[2 * i], v[2 * i + 1]))
                     : "memory");
    }
}

#endif
#endif
