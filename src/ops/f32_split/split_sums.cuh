/* What f32_split_wgmma.cu does with the sums of a tile: scales, doubts about bits that were lost,
 * and elements that are not finite. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_SUMS_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_SUMS_CUH

#include "split_call.cuh"
#include "split_scale.cuh"
#include "wgmma_finish.cuh"

/* Takes the scales out of the sums; in two steps, as one alone may not be a float. */
#if CONV
DEVICE void unscale(const split_product &s, float (&sum)[SUMS])
{
    int exponent = -__ldg(s.a_exponents) - __ldg(s.b_exponents), half = exponent >> 1;
    float first = power_of_two(half), second = power_of_two(exponent - half);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[i] = sum[i] * first * second;
}
#else
DEVICE void unscale(const wgmma_call &c, const split_product &s, const unit &u, const crew &w,
                    float (&sum)[SUMS])
{
    const int *a = s.a_exponents + (long long)u.batch[0] * c.a_batch[0] * c.m;
    const int *b = s.b_exponents + (long long)u.batch[0] * c.b_batch[0] * c.n;
    int row = u.row + w.group * ROWS + 16 * w.warp + lane() / 4, by[2];
    by[0] = row < c.m ? -__ldg(a + row) : 0;
    by[1] = row + 8 < c.m ? -__ldg(a + row + 8) : 0;
#pragma unroll
    for (int j = 0; j < SUMS; j += 4)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int column = u.column + 2 * j + lane() % 4 * 2 + i;
            int down = column < c.n ? __ldg(b + column) : 0;
#pragma unroll
            for (int l = 0; l < 2; l++) {
                int exponent = by[l] - down, half = exponent >> 1;
                float &v = sum[j + 2 * l + i];
                v = v * power_of_two(half) * power_of_two(exponent - half);
            }
        }
}
#endif

#if PLANES == 2
/* Asks for the product to be done again where a sum is so small that the bits which `small`
 * elements have lost, 2^-36 times up to 2^15 each, may be more than 2^-23 of it. A sum has two
 * elements for each of `depth`. */
DEVICE void doubt(unsigned *words, unsigned small, int depth, const float (&sum)[SUMS])
{
    float least = CONV ? 4.0f * fminf((float)small, 2.0f * (float)depth) : 4.0f * (float)small;
    bool any = false;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        any = any || (sum[i] != 0.0f && fabsf(sum[i]) < least);
    if (any && ((volatile unsigned *)words)[SPLIT_AGAIN] == 0)
        atomicOr(words + SPLIT_AGAIN, 1u);
}
#endif

#if !CONV
/* Sums elements that are NaN again, one product at a time. */
DEVICE void repair(const wgmma_call &c, const split_product &s, const unit &u, const crew &w,
                   float (&sum)[SUMS])
{
    bool any = false;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        any = any || sum[i] != sum[i];
    if (!any)
        return;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        long long row = u.row + w.group * ROWS + 16 * w.warp + lane() / 4 + i / 2 % 2 * 8;
        long long column = u.column + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (sum[i] == sum[i] || row >= c.m || column >= c.n)
            continue;
        const float *a = s.a + u.batch[0] * s.a_batch + row * s.a_row + u.k * TILE_K * s.a_k;
        const float *b = s.b + u.batch[0] * s.b_batch + column * s.b_column + u.k * TILE_K * s.b_k;
        long long end = min(s.k - u.k * TILE_K, (long long)u.k_tiles * TILE_K);
        float total = 0;
#pragma unroll 1
        for (long long k = 0; k < end; k++)
            total += __ldg(a + k * s.a_k) * __ldg(b + k * s.b_k);
        sum[i] = total;
    }
}
#endif

#endif
