/* The sums of a walk along k in the tiles of mma_tile.cuh, of CUP_T: 16 bits and, with CODES, codes
 * of 8 bits (mma_codes.cuh), as they were read, or f32 rounded to tf32 (mma_tf32.cuh). */
#ifndef CUP_MMA_SUMS_CUH
#define CUP_MMA_SUMS_CUH

#ifndef CODES
#define CODES 0
#endif

#include "mma_tile.cuh"
#if CODES
#include "mma_codes.cuh"
#else
typedef float product;
#define WIDENED(t) 1.0f
#endif

typedef product products[BLOCKS_M][BLOCKS_N][4];

#if CUP_T == CUP_F32
#define TERMS 1
#include "mma_tf32.cuh"
#else
DEVICE void multiply_words(product (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if CODES
    multiply_add_codes(sum, a, b0, b1);
#else
    multiply_add(sum, a, b0, b1, T());
#endif
}

template <typename Walk, typename Index>
DEVICE void sum_parts(Walk &walk, Index begin, Index end, products &sum)
{
    for (Index k = begin; k < end; k += DEPTH, walk.leave())
        multiply<whole_words>(walk.come(),
                              [&](int i, int j, whole_words &x, whole_words &w, int at) {
                                  multiply_words(sum[i][j], x.at, w.at[at], w.at[at + 1]);
                              });
}
#endif

#endif
