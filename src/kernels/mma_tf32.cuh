/* Products of f32 by tensor cores, in the tiles of mma_tile.cuh. TERMS 1: what is multiplied is
 * rounded to tf32. 3: each number is the sum of two of tf32, and three of their four products
 * count, which leaves no larger error than f32 has.
 *
 * Tensor cores cut sums off towards zero: with three terms the products of the leading parts are
 * added up outside for each tile of k. An infinity has no second part, so a sum that is NaN in the
 * end is to be made again without tensor cores. */
#ifndef CUP_MMA_TF32_CUH
#define CUP_MMA_TF32_CUH

#include "mma_tile.cuh"

/* The leading parts of four numbers, and what is left. */
struct tf32_parts {
    uint32_t high[4], low[4];

    __device__ __forceinline__ void take(const uint32_t (&words)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = __uint_as_float(words[i]);
            high[i] = to_tf32(x);
            if (TERMS > 1)
                low[i] = to_tf32(x - __uint_as_float(high[i]));
        }
    }
};

DEVICE void add_to(sums &sum, const sums &more)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M * BLOCKS_N * 4; i++)
        (&sum[0][0][0])[i] += (&more[0][0][0])[i];
}

DEVICE void multiply_parts(uint32_t stage, sums &sum, sums &rest)
{
    multiply<tf32_parts>(stage, [&](int i, int j, tf32_parts &a, tf32_parts &b, int at) {
        multiply_add_tf32(sum[i][j], a.high, b.high[at], b.high[at + 1]);
        if (TERMS > 1) {
            multiply_add_tf32(rest[i][j], a.low, b.high[at], b.high[at + 1]);
            multiply_add_tf32(rest[i][j], a.high, b.low[at], b.low[at + 1]);
        }
    });
}

/* All of a walk, from `begin` to `end` of k. */
template <typename Walk>
DEVICE void sum_parts(Walk &walk, long long begin, long long end, sums &sum)
{
    sums rest = {};
    for (long long k = begin; k < end; k += DEPTH, walk.leave()) {
        uint32_t stage = walk.come();
        if (TERMS == 1) {
            multiply_parts(stage, sum, rest);
        } else {
            sums leading = {};
            multiply_parts(stage, leading, rest);
            add_to(sum, leading);
        }
    }
    if (TERMS > 1)
        add_to(sum, rest);
}

#endif
