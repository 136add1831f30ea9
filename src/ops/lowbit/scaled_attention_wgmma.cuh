/* The two products of scaled_attention_wgmma.cu, and what goes between them: scores, which lie as
 * wgmma.cuh says, become the A of the second one. */
#ifndef CUP_OPS_LOWBIT_SCALED_ATTENTION_WGMMA_CUH
#define CUP_OPS_LOWBIT_SCALED_ATTENTION_WGMMA_CUH

#include "attention_wgmma_scores.cuh"
#include "scaled_attention_call.cuh"

#if CUP_HAS_WGMMA

#define QUERY_BYTES (64 * SIZE)  /* of the rows of one warpgroup */
#define TILE_BYTES (STEP * SIZE) /* of keys, and of turned values */
#define ONES 0x38383838u /* four codes of 1 */
#define ONES_BYTES (8 * STEP)
#define VALUE_BYTES (TILE_BYTES + ONES_BYTES)
#define PART (SIZE + 8) /* features, and what sums the codes */
/* What is RANGE_LOG2 above the row's base is 1; codes go up to 2.8 above, and none are used that
 * reach the largest. A row's base is raised where a score is RAISED_LOG2 above it. */
#define RANGE_LOG2 6.0f
#define RAISED_LOG2 2.0f

typedef dtype_of<Y_T>::type result;
typedef float parts[PART / 2];
typedef uint32_t codes[STEP / 32][4];
typedef uint32_t codes_of_half[STEP / 64][4];

/* Lines of SIZE bytes: swizzled as 128, or as 64, of which 8 lines are 512 bytes. */
DEVICE uint64_t describe_heads(uint32_t address)
{
    if (SIZE == 128)
        return wgmma_describe(address, ALONG_K, 0);
    return (uint64_t)2 << 62 | (uint64_t)(512 >> 4) << 32 | (uint64_t)1 << 16 |
           (uint64_t)((address & 0x3ffff) >> 4);
}

#if SIZE == 64
WGMMA_DEFINE(72, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", %32, %33, %34, %35",
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D1(32), WGMMA_D1(33),
              WGMMA_D1(34), WGMMA_D1(35)),
             36, 37, 38, 39, 40, 41, 42)
#else
WGMMA_DEFINE(136, WGMMA_L0 ", " WGMMA_L1 ", " WGMMA_L2 ", " WGMMA_L3 ", " WGMMA_L4 ", "
             WGMMA_L5 ", " WGMMA_L6 ", " WGMMA_L7 ", %64, %65, %66, %67",
             (WGMMA_D(0), WGMMA_D(8), WGMMA_D(16), WGMMA_D(24), WGMMA_D(32), WGMMA_D(40),
              WGMMA_D(48), WGMMA_D(56), WGMMA_D1(64), WGMMA_D1(65), WGMMA_D1(66), WGMMA_D1(67)),
             68, 69, 70, 71, 72, 73, 74)
#endif

/* s = q k^T. Leaves it under way. */
DEVICE void start_scores_of_codes(scores &s, uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < SIZE / 32; i++)
        wgmma<STEP>::run<ALONG_K, ALONG_K>(s, q + wgmma_step(ALONG_K, i),
                                           k + wgmma_step(ALONG_K, i), i > 0);
    wgmma_commit();
}

/* part = p v, or part += p v when `add`. Leaves it under way. */
DEVICE void start_part(parts &part, const codes &p, uint64_t v, int add)
{
#pragma unroll
    for (int i = 0; i < STEP / 32; i++)
        wgmma<PART>::run_registers<ALONG_K>(part, p[i], v + wgmma_step(ALONG_K, i), i > 0 || add);
    wgmma_commit();
}

/* Four numbers that are not negative as e4m3, the first in the lowest byte. */
DEVICE uint32_t four_codes(float a, float b, float c, float d)
{
    uint32_t word;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return word;
}

/* Half of a thread's scores, of 32 keys from First on each, as words of A. */
template <int First>
DEVICE void make_codes(codes_of_half &half, const scores &s, float scale, const float (&base)[2])
{
#pragma unroll
    for (int i = 0; i < STEP / 64; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = exp2_fast(__fmaf_rn(s[16 * (First + i) + HELD_SCORE(r, e)], scale,
                                           -base[r % 2]));
            half[i][r] = four_codes(x[0], x[1], x[2], x[3]);
        }
}

template <int First>
DEVICE void put_codes(codes &p, const codes_of_half &half, uint32_t zero)
{
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        p[First + i / 4][i % 4] = half[i / 4][i % 4] + zero;
}

/* Whether one of the codes is the largest, 448, or no number: only these reach bit 7 with 2. */
DEVICE bool too_large(const codes &p)
{
    uint32_t over = 0;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
        over |= p[i / 4][i % 4] + 0x02020202u;
    return over & 0x80808080u;
}

/* Keeps the compiler from making codes among the products. */
DEVICE void hold_codes(codes &p)
{
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
        asm volatile("" : "+r"(p[i / 4][i % 4])::"memory");
}

/* A row's results as they are in memory: words of two numbers, put side by side by the four threads
 * of a row, or the f32 themselves. */
DEVICE void store_row(result *row, int size, int r, const results &o, float scale, bool there)
{
#if Y_T == CUP_F32
#pragma unroll
    for (int j = 0; j < SIZE / 8; j++) {
        int column = 8 * j + 2 * (lane() % 4);
        if (there && column < size)
            *(float2 *)(row + column) =
                make_float2(o[4 * j + 2 * r] * scale, o[4 * j + 2 * r + 1] * scale);
    }
#else
#pragma unroll
    for (int j = 0; j < SIZE / 32; j++) {
        uint32_t w[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            w[k] = pack(o[16 * j + 4 * k + 2 * r] * scale, o[16 * j + 4 * k + 2 * r + 1] * scale,
                        result());
        turn_words(w);
        int column = 32 * j + 8 * (lane() % 4);
        if (there && column < size)
            *(uint4 *)(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
#endif
}

#endif
#endif
