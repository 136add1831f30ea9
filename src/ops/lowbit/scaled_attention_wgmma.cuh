/* The two products of scaled_attention_wgmma.cu, and what goes between them: scores, which lie as
 * wgmma.cuh says, become the A of the second one. */
#ifndef CUP_OPS_LOWBIT_SCALED_ATTENTION_WGMMA_CUH
#define CUP_OPS_LOWBIT_SCALED_ATTENTION_WGMMA_CUH

#include "attention_wgmma_scores.cuh"
#include "scaled_attention_call.cuh"

#if CUP_HAS_WGMMA

#define QUERY_BYTES (64 * SIZE)  /* of the rows of one warpgroup */
#define TILE_BYTES (STEP * SIZE) /* of keys, and of turned values */
#define RANGE_LOG2 8.0f          /* probabilities are multiplied by 2^8 */

typedef dtype_of<Y_T>::type result;
typedef uint32_t codes[STEP / 32][4];

/* Lines of SIZE bytes: swizzled as 128, or as 64, of which 8 lines are 512 bytes. */
DEVICE uint64_t describe_heads(uint32_t address)
{
    if (SIZE == 128)
        return wgmma_describe(address, ALONG_K, 0);
    return (uint64_t)2 << 62 | (uint64_t)(512 >> 4) << 32 | (uint64_t)1 << 16 |
           (uint64_t)((address & 0x3ffff) >> 4);
}

/* s = q k^T. Leaves it under way. */
DEVICE void start_scores_of_codes(scores &s, uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < SIZE / 32; i++)
        wgmma<STEP>::run<ALONG_K, ALONG_K>(s, q + wgmma_step(ALONG_K, i),
                                           k + wgmma_step(ALONG_K, i), i > 0);
    wgmma_commit();
}

/* part = p v. Leaves it under way. */
DEVICE void start_part(results &part, const codes &p, uint64_t v)
{
#pragma unroll
    for (int i = 0; i < STEP / 32; i++)
        wgmma<SIZE>::run_registers<ALONG_K>(part, p[i], v + wgmma_step(ALONG_K, i), i > 0);
    wgmma_commit();
}

/* Four numbers from 0 to 2^8 as e4m3, the first in the lowest byte. */
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

/* A thread's scores of 32 keys as words of A. */
DEVICE void pack_codes(uint32_t (&p)[4], const float *s)
{
#pragma unroll
    for (int r = 0; r < 4; r++)
        p[r] = four_codes(s[HELD_SCORE(r, 0)], s[HELD_SCORE(r, 1)], s[HELD_SCORE(r, 2)],
                          s[HELD_SCORE(r, 3)]);
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
