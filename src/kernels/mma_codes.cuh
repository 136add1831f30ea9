/* Codes of 8 bits by the tensor cores of every card from Turing on: CUP_T of a and B_T of b. i8 is
 * summed exactly. f8 goes to the tensor cores as it is where they take it and FAST allows their
 * short sums, else as f16, which holds every f8 e5m2, and every e4m3 over 256: sums are then to be
 * multiplied with WIDENED of both. */
#ifndef CUP_MMA_CODES_CUH
#define CUP_MMA_CODES_CUH

#include "dtype.cuh"
#include "ptx.cuh"

#if CUP_T == CUP_I8
typedef int product;
#else
typedef float product;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define TAKES_F8 FAST
#else
#define TAKES_F8 0
#endif
#define WIDENED(t) ((t) == CUP_F8E4M3 && !TAKES_F8 ? 256.0f : 1.0f)

/* Two e4m3 in the upper halves of words of 16 bits become f16 over 256, and NaN stays NaN. */
DEVICE uint32_t widened(uint32_t pair)
{
    uint32_t magnitude = pair & 0x7f007f00, is_nan = (magnitude + 0x01000100) & 0x80008000;
    return (pair & 0x80008000) | magnitude >> 1 | (is_nan >> 15) * 0x7e00;
}

/* Four codes as f16, those of e4m3 over 256: first and second, third and fourth. */
template <int Dtype> DEVICE void widen(uint32_t codes, uint32_t &low, uint32_t &high)
{
    low = __byte_perm(codes, 0, 0x1404);
    high = __byte_perm(codes, 0, 0x3424);
    if (Dtype == CUP_F8E5M2)
        return;
    low = widened(low);
    high = widened(high);
}

#if CUP_T == CUP_I8
DEVICE void multiply_add_codes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
            : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
}

#else

#if TAKES_F8
#define F8_NAME_9 "e4m3"
#define F8_NAME_10 "e5m2"
#define F8_PASTE(t) F8_NAME_##t
#define F8_NAME(t) F8_PASTE(t)
#endif

DEVICE void multiply_add_codes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if TAKES_F8
    asm("mma.sync.aligned.m16n8k32.row.col.f32." F8_NAME(CUP_T) "." F8_NAME(B_T) ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    /* Which of 16 codes comes where along k does not matter as long as a and b agree. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t wide[4], left, right;
        widen<CUP_T>(a[2 * i], wide[0], wide[2]);
        widen<CUP_T>(a[2 * i + 1], wide[1], wide[3]);
        widen<B_T>(i ? b1 : b0, left, right);
        multiply_add(c, wide, left, right, f16());
    }
#endif
}
#endif

#endif
