/* Dropout of what wgmma.cu stores, with the random bits that ops/random/dropout.h says. Rows have a
 * multiple of 8 elements. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_DROPOUT_CUH
#define CUP_OPS_MATMUL_WGMMA_DROPOUT_CUH

#include "dropout.cuh"
#include "hopper.cuh"
#include "wgmma_call.cuh"

#ifndef DROPOUT
#define DROPOUT 0
#endif

/* Which of 8 neighbouring elements are kept: of the `column`th and following ones of a row. */
DEVICE unsigned draw_kept(const wgmma_call &c, int row, int column)
{
    long long number = ((long long)row * c.n + column) / 8;
    unsigned kept = dropout_kept(c.random[0], (uint32_t)c.random[1], c.sequence, (uint64_t)number,
                                 c.threshold, c.threshold_rest);
    if (c.mask && row < c.m && column < c.n)
        c.mask[number] = (unsigned char)kept;
    return kept;
}

/* Eight values of sixteen columns from `column` on, of this thread's row `row` and the one 8 below.
 * The four threads that have these rows draw for 8 columns of one of them each. */
DEVICE void drop(const wgmma_call &c, int row, int column, float (&v)[8])
{
    int place = lane() % 4;
    unsigned kept = draw_kept(c, row + place % 2 * 8, column + place / 2 * 8) << (8 * place);
    kept |= __shfl_xor_sync(0xffffffffu, kept, 1);
    kept |= __shfl_xor_sync(0xffffffffu, kept, 2);
    kept >>= 2 * place;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = kept >> (i / 2 * 8 + i % 2) & 1 ? v[i] * c.kept : 0.0f;
}

#endif
