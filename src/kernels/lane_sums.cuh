/* Weighted sums of values that the lanes of a warp read several keys at a time for: what attention
 * to a cache keeps of each row. Included behind the knobs EACH, elements a lane, and LANES, which
 * read a key together. Scores are powers of two. */
#ifndef CUP_KERNELS_LANE_SUMS_CUH
#define CUP_KERNELS_LANE_SUMS_CUH

#include "reduce.cuh"

#define SIZE (LANES * EACH)
#define GROUPS (32 / LANES)
#define ROW (SIZE + 2) /* of sums: then the base and the sum of weights */

DEVICE real lowest()
{
    return -(real)__int_as_float(0x7f800000);
}

/* 2 to the power x - base, where nothing is -infinity. */
DEVICE real weight_of(real x, real base)
{
    return x == lowest() ? 0 : exp2(x - base);
}

/* What a group of lanes has summed for one query. */
struct sums {
    real base, weight, o[EACH];
};

DEVICE void fade(sums &s, real base)
{
    real factor = s.base == lowest() && s.weight == 0 ? 0 : exp2(s.base - base);
    s.base = base;
    s.weight *= factor;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        s.o[e] *= factor;
}

DEVICE real larger(real a, real b)
{
    return a > b ? a : b;
}

/* Adds up what the groups of a warp have. */
DEVICE void join_groups(sums &s)
{
#pragma unroll
    for (int mask = LANES; mask < 32; mask *= 2) {
        real base = larger(s.base, shuffle_xor(s.base, mask));
        if (base > lowest())
            fade(s, base);
        s.weight += shuffle_xor(s.weight, mask);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            s.o[e] += shuffle_xor(s.o[e], mask);
    }
}

/* Column d of the sum over `count` rows of sums, with its base and the sum of weights. */
template <typename Row>
DEVICE real sum_of(const Row *rows, int count, int row, int size, int d, real *base_out,
                   real *weight_out)
{
    real base = lowest(), weight = 0, value = 0;
    for (int w = 0; w < count; w++)
        base = larger(base, rows[w * row + size]);
    for (int w = 0; w < count; w++) {
        const Row *from = rows + w * row;
        real factor = from[size + 1] == 0 ? 0 : exp2((real)from[size] - base);
        weight += factor * from[size + 1];
        value += factor * from[d];
    }
    *base_out = base;
    *weight_out = weight;
    return value;
}

#endif
