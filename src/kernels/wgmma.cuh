/* The warpgroup products of Hopper: 64 x N of y in the registers of four warps, b and mostly a in
 * shared memory, in the element type CUP_T.
 *
 * A tile in shared memory consists of panels of 128 bytes by some lines, swizzled as TMA leaves it
 * (SWIZZLE_128B), at multiples of 1024 bytes. ALONG_K: a line is one row of m or n, 128 bytes of k
 * long; a k-step moves 32 bytes on. ALONG_MN: a line is one k, 128 bytes of m or n long; panels of
 * 64 elements lie `panel` bytes apart; a k-step moves 16 lines on. Only 16-bit types can lie along
 * m or n.
 *
 * In registers, thread t of the 128 holds of each 8 columns j: d[4j], d[4j+1] in row 16 (t / 32) +
 * t % 32 / 4, columns 8j + 2 (t % 4) and the next one; d[4j+2], d[4j+3] 8 rows further down. */
#ifndef CUP_WGMMA_CUH
#define CUP_WGMMA_CUH

#include "dtype.cuh"
#include "product_call.cuh"
#include "hopper.cuh"

#ifndef B_T
#define B_T CUP_T
#endif
#if CUP_T == CUP_F8E5M2
#define WGMMA_A "e5m2"
#else
#define WGMMA_A "e4m3"
#endif
#if B_T == CUP_F8E5M2
#define WGMMA_B "e5m2"
#else
#define WGMMA_B "e4m3"
#endif
#if CUP_T == CUP_F16
#define WGMMA_KIND "k16.f32.f16.f16"
#elif CUP_T == CUP_F32
#define WGMMA_KIND "k8.f32.tf32.tf32"
#elif CUP_T == CUP_F8E4M3 || CUP_T == CUP_F8E5M2
#define WGMMA_KIND "k32.f32." WGMMA_A "." WGMMA_B
#elif CUP_T == CUP_I8
#define WGMMA_KIND "k32.s32.s8.s8"
#else
#define WGMMA_KIND "k16.f32.bf16.bf16"
#endif
#if CUP_T == CUP_F16 || CUP_T == CUP_BF16
#define WGMMA_TAIL(ta, tb) ", p, 1, 1, %" #ta ", %" #tb ";\n}\n"
#define WGMMA_TAIL_B(tb) ", p, 1, 1, %" #tb ";\n}\n"
#elif CUP_T == CUP_I8
#define WGMMA_TAIL(ta, tb) ", p;\n}\n"
#define WGMMA_TAIL_B(tb) ", p;\n}\n"
#else
#define WGMMA_TAIL(ta, tb) ", p, 1, 1;\n}\n"
#define WGMMA_TAIL_B(tb) ", p, 1, 1;\n}\n"
#endif
#if CUP_T == CUP_I8
typedef int wgmma_sum;
#define WGMMA_CHANGED "+r"
#else
typedef float wgmma_sum;
#define WGMMA_CHANGED "+f"
#endif

#if CUP_HAS_WGMMA

#define WGMMA_K_STEPS 4 /* in 128 bytes of k, or in 64 lines */

/* What the hardware is told of a tile: where it is, and how far apart its pieces are. */
DEVICE uint64_t wgmma_describe(uint32_t address, int along, uint32_t panel)
{
    uint64_t leading = along == PRODUCT_ALONG_K ? 1 : panel >> 4;
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | leading << 16 |
           (uint64_t)((address & 0x3ffff) >> 4);
}

/* What is added to a description for k-step i. */
DEVICE uint64_t wgmma_step(int along, int i)
{
    return (uint64_t)(along == PRODUCT_ALONG_K ? 32 * i >> 4 : 16 * 128 * i >> 4);
}

/* Before the first product of a chain, and after registers it uses were written. */
DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most Pending of the committed groups are under way. */
template <int Pending> DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/* Keeps the compiler from moving uses of sums across a wait. */
template <int Count> DEVICE void wgmma_hold(wgmma_sum (&d)[Count])
{
#pragma unroll
    for (int i = 0; i < Count; i++)
        asm volatile("" : WGMMA_CHANGED(d[i])::"memory");
}

#define WGMMA_L0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_L1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_L2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_L3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_L4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_L5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_L6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_L7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_L8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_L9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_L10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_L11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_L12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_L13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_L14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_L15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D1(i) WGMMA_CHANGED(d[i])
#define WGMMA_D(i)                                                                                 \
    WGMMA_D1(i), WGMMA_D1(i + 1), WGMMA_D1(i + 2), WGMMA_D1(i + 3), WGMMA_D1(i + 4),               \
        WGMMA_D1(i + 5), WGMMA_D1(i + 6), WGMMA_D1(i + 7)
#define WGMMA_D_ALL(...) __VA_ARGS__
#define WGMMA_TEXT(n, list, scale)                                                                 \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #scale ", 0;\n"                                           \
    "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_KIND " {" list "}, "

/* run: d = a b, or d += a b when `add`, for one k-step of what `a` and `b` describe.
 * run_registers: the same with a in registers, as four words of two elements. */
template <int N> struct wgmma;
#define WGMMA_DEFINE(n, list, sums, r0, r1, r2, r3, r4, r5, r6)                                    \
    template <> struct wgmma<n> {                                                                  \
        template <int A_along, int B_along>                                                        \
        static __device__ __forceinline__ void run(wgmma_sum (&d)[n / 2], uint64_t a, uint64_t b,  \
                                                   int add)                                        \
        {                                                                                          \
            asm volatile(WGMMA_TEXT(n, list, r2) "%" #r0 ", %" #r1 WGMMA_TAIL(r3, r4)              \
                         : WGMMA_D_ALL sums                                                        \
                         : "l"(a), "l"(b), "r"(add), "n"(A_along), "n"(B_along));                  \
        }                                                                                          \
        template <int B_along>                                                                     \
        static __device__ __forceinline__ void                                                     \
        run_registers(wgmma_sum (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, int add)          \
        {                                                                                          \
            asm volatile(WGMMA_TEXT(n, list, r5) "{%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 \
                             WGMMA_TAIL_B(r6)                                                      \
                         : WGMMA_D_ALL sums                                                        \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),           \
                           "n"(B_along));                                                          \
        }                                                                                          \
    };
WGMMA_DEFINE(16, WGMMA_L0,
             (WGMMA_D(0)),
             8, 9, 10, 11, 12, 13, 14)
WGMMA_DEFINE(32, WGMMA_L0 ", " WGMMA_L1,
             (WGMMA_D(0), WGMMA_D(8)),
             16, 17, 18, 19, 20, 21, 22)
WGMMA_DEFINE(48, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16)),
             24, 25, 26, 27, 28, 29, 30)
WGMMA_DEFINE(64, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24)),
             32, 33, 34, 35, 36, 37, 38)
WGMMA_DEFINE(80, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32)),
             40, 41, 42, 43, 44, 45, 46)
WGMMA_DEFINE(96, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", " WGMMA_L5,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40)),
             48, 49, 50, 51, 52, 53, 54)
WGMMA_DEFINE(112, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48)),
             56, 57, 58, 59, 60, 61, 62)
WGMMA_DEFINE(128, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56)),
             64, 65, 66, 67, 68, 69, 70)
WGMMA_DEFINE(144, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64)),
             72, 73, 74, 75, 76, 77, 78)
WGMMA_DEFINE(160, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72)),
             80, 81, 82, 83, 84, 85, 86)
WGMMA_DEFINE(176, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80)),
             88, 89, 90, 91, 92, 93, 94)
WGMMA_DEFINE(192, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10 ", "
             WGMMA_L11,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80), WGMMA_D(88)),
             96, 97, 98, 99, 100, 101, 102)
WGMMA_DEFINE(208, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10 ", "
             WGMMA_L11 ", " WGMMA_L12,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80), WGMMA_D(88),
              WGMMA_D(96)),
             104, 105, 106, 107, 108, 109, 110)
WGMMA_DEFINE(224, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10 ", "
             WGMMA_L11 ", " WGMMA_L12 ", " WGMMA_L13,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80), WGMMA_D(88),
              WGMMA_D(96), WGMMA_D(104)),
             112, 113, 114, 115, 116, 117, 118)
WGMMA_DEFINE(240, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10 ", "
             WGMMA_L11 ", " WGMMA_L12 ", " WGMMA_L13 ", " WGMMA_L14,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80), WGMMA_D(88),
              WGMMA_D(96), WGMMA_D(104), WGMMA_D(112)),
             120, 121, 122, 123, 124, 125, 126)
WGMMA_DEFINE(256, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", " WGMMA_L8 ", " WGMMA_L9 ", " WGMMA_L10 ", "
             WGMMA_L11 ", " WGMMA_L12 ", " WGMMA_L13 ", " WGMMA_L14 ", " WGMMA_L15,
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D(64), WGMMA_D(72), WGMMA_D(80), WGMMA_D(88),
              WGMMA_D(96), WGMMA_D(104), WGMMA_D(112), WGMMA_D(120)),
             128, 129, 130, 131, 132, 133, 134)

#endif
#endif
