/* What matmul_sm90.cu does beside for scaled codes of 8 bits: it multiplies sums with the scales of
 * rows and columns, and with scales for blocks of k, or where sums shall be exact, it adds up the
 * sums of each k-tile outside of the tensor cores, which keep 14 bits of theirs. Uses that file's
 * knobs and sizes. */
#ifndef CUP_WGMMA_SCALE_CUH
#define CUP_WGMMA_SCALE_CUH

#include "pipe.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"
#include "wgmma_finish.cuh"

/* Of a stage: the scales of the tile's rows, and the one that its columns share. */
#define SCALE_FLOATS (TILE_M + 32)

DEVICE float scale_of(const product_scale &s, int line)
{
    return s.data ? __ldg(s.data + (line >> s.shift) * s.line) : 1.0f;
}

/* One warp orders the copies of the scales of each k-tile; they count for the stage's barrier like
 * the bytes of its tiles. */
DEVICE void bring_scales(const wgmma_call &c, const unit &u, const layout &at,
                         const ring<STAGES> &pipe, ring_place<STAGES> &place)
{
    const product_scale &a = c.a_scale, &b = c.b_scale;
    for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
        barrier_wait(pipe.empty(place.stage), place.phase ^ 1);
        uint32_t to = shared_address(at.scales) + place.stage * SCALE_FLOATS * 4;
#pragma unroll
        for (int i = 0; i < TILE_M; i += 32) {
            int row = u.row + i + lane();
            const float *from = a.data + (row >> a.shift) * a.line + t * a.k;
            copy_async4(to + 4 * (i + lane()), row < c.m ? from : a.data, row < c.m);
        }
        if (lane() == 0)
            copy_async4(to + 4 * TILE_M, b.data + (u.column >> b.shift) * b.line + t * b.k,
                        u.column < c.n);
        barrier_arrive_with_copies(pipe.full(place.stage));
    }
}

/* All of a unit's k, the sums of each k-tile and 64 rows multiplied with their scales. While this
 * warpgroup adds, others multiply. */
DEVICE void add_blocks(sums &sum, int k_tiles, uint64_t a, uint64_t b, const layout &at,
                       const crew &w, const ring<STAGES> &pipe, ring_place<STAGES> &place)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M * SUMS; i++)
        (&sum[0][0])[i] = 0;
    int row = (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp + lane() / 4;
#pragma unroll 1
    for (int t = 0; t < k_tiles; t++) {
        pipe.wait_full(place);
        uint64_t stage = (uint64_t)(place.stage * (STAGE_BYTES >> 4));
        const float *from = (const float *)at.scales + place.stage * SCALE_FLOATS;
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++) {
            wgmma_sum part[SUMS];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < WGMMA_K_STEPS; i++)
                wgmma<TILE_N>::run<PRODUCT_ALONG_K, PRODUCT_ALONG_K>(
                    part, a + stage + (64 * 128 >> 4) * m + wgmma_step(PRODUCT_ALONG_K, i),
                    b + stage + wgmma_step(PRODUCT_ALONG_K, i), i > 0);
            wgmma_commit();
            float scale[2] = {1, 1};
            if (SCALES == PRODUCT_SCALE_BLOCKS)
                for (int i = 0; i < 2; i++)
                    scale[i] = from[row + 64 * m + 8 * i] * from[TILE_M];
            wgmma_wait<0>();
            wgmma_hold(part);
            if (m == BLOCKS_M - 1)
                pipe.release<CLUSTER>(place.stage);
#pragma unroll
            for (int i = 0; i < SUMS; i++)
                sum[m][i] += scale[i / 2 % 2] * (float)part[i];
        }
        place.next();
    }
}

/* What a thread of a warpgroup holds of the scales of its tile while products are summed: those
 * of its rows, and of two columns that it will show to the others. */
struct line_scales {
    float row[BLOCKS_M][2], column[2];
};

DEVICE line_scales take_scales(const wgmma_call &c, const unit &u, const crew &w)
{
    line_scales s = {};
    int row = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp + lane() / 4;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS_M; i++)
        s.row[i / 2][i % 2] =
            scale_of(c.a_scale, min(row + i / 2 * 64 + i % 2 * 8, c.m - 1));
    if (2 * w.thread < TILE_N)
#pragma unroll
        for (int i = 0; i < 2; i++)
            s.column[i] = scale_of(c.b_scale, min(u.column + 2 * w.thread + i, c.n - 1));
    return s;
}

typedef wgmma_sum products[BLOCKS_M][SUMS];

/* Floats take the place of integers. */
DEVICE void put_scaled(float &to, float value)
{
    to = value;
}

DEVICE void put_scaled(int &to, float value)
{
    to = __float_as_int(value);
}

/* From what was summed to what y gets, in place: floats, or as they are the integers that are not
 * scaled. */
DEVICE void apply_scales(const wgmma_call &c, const crew &w, const layout &at,
                         const line_scales &s, products &sum)
{
#if SCALES == PRODUCT_SCALE_LINES
    float *columns = (float *)at.scales + w.group * TILE_N;
    meet(1 + w.group, 128);
    if (2 * w.thread < TILE_N)
        *(float2 *)(columns + 2 * w.thread) = make_float2(s.column[0], s.column[1]);
    meet(1 + w.group, 128);
#pragma unroll
    for (int j = 0; j < SUMS / 4; j++) {
        float2 column = *(const float2 *)(columns + 8 * j + lane() % 4 * 2);
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                put_scaled(sum[m][4 * j + i],
                           (float)sum[m][4 * j + i] *
                               (s.row[m][i / 2] * (i % 2 ? column.y : column.x)));
    }
#elif SCALES == PRODUCT_SCALE_ONE
    float factor = scale_of(c.a_scale, 0) * scale_of(c.b_scale, 0);
#pragma unroll
    for (int i = 0; i < BLOCKS_M * SUMS; i++)
        put_scaled((&sum[0][0])[i], (float)(&sum[0][0])[i] * factor);
#endif
}

#endif
