/* What wgmma.cu does beside for scaled codes of 8 bits: it multiplies sums with the scales of
 * rows and columns, and with scales for blocks of k, or where sums shall be exact, it adds up the
 * sums of each k-tile outside of the tensor cores, which keep 14 bits of theirs. Uses that file's
 * knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_SCALE_CUH
#define CUP_OPS_MATMUL_WGMMA_SCALE_CUH

#include "pipe.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"
#include "wgmma_finish.cuh"

/* Of a stage: the scales of the tile's rows, and those of its columns, of which 128 share one. */
#define SCALE_FLOATS (TILE_M + 32)
#define COLUMN_SCALES (TILE_N > PRODUCT_SCALE_DEPTH ? 2 : 1)
#ifndef SCALE_VEC /* 4 where those of neighbouring rows are neighbours that can be copied at once */
#define SCALE_VEC 1
#endif

DEVICE float scale_of(const product_scale &s, int line)
{
    return s.data ? __ldg(s.data + (line >> s.shift) * s.line) : 1.0f;
}

/* Those of the matrix that the unit belongs to. */
DEVICE product_scale scales_of(const product_scale &s, const unit &u)
{
    const float *own = GROUPS && s.data ? s.data + u.batch[0] * s.group : s.data;
    product_scale of = {own, s.line, s.k, 0, s.shift};
    return of;
}

/* Copies the scales of a k-tile's rows, SCALE_VEC at a time; `from` is that of the row that this
 * lane begins with. */
DEVICE void bring_row_scales(const wgmma_call &c, const unit &u, const float *from, uint32_t to)
{
    const product_scale &a = c.a_scale;
#pragma unroll
    for (int i = 0; i < TILE_M; i += 32 * SCALE_VEC) {
        int line = i + SCALE_VEC * lane();
        bool valid = u.row + line < c.m;
        if (SCALE_VEC == 4 && line < TILE_M)
            copy_async16(to + 4 * line, from + i, valid);
        else if (SCALE_VEC == 1)
            copy_async4(to + 4 * line, from + ((u.row + line) >> a.shift) * a.line, valid);
    }
}

/* One warp orders the copies of the scales of each k-tile; they count for the stage's barrier like
 * the bytes of its tiles. It must be quick, as products wait for it. */
DEVICE void bring_scales(const wgmma_call &c, const unit &u, const layout &at,
                         const ring<STAGES> &pipe, ring_place<STAGES> &place)
{
    const product_scale &a = c.a_scale, b = scales_of(c.b_scale, u);
    int block = u.column / PRODUCT_SCALE_DEPTH + lane();
    bool valid = lane() < COLUMN_SCALES && block * PRODUCT_SCALE_DEPTH < c.n;
    const float *rows = a.data + u.k * a.k + (SCALE_VEC == 4 ? u.row + 4 * lane() : 0);
    const float *columns =
        b.data + u.k * b.k + (valid ? (block * PRODUCT_SCALE_DEPTH >> b.shift) * b.line : 0);
    for (int t = 0; t < u.k_tiles; t++, place.next(), rows += a.k, columns += b.k) {
        barrier_wait(pipe.empty(place.stage), place.phase ^ 1);
        uint32_t to = shared_address(at.scales) + place.stage * SCALE_FLOATS * 4;
        bring_row_scales(c, u, rows, to);
        if (lane() < COLUMN_SCALES)
            copy_async4(to + 4 * (TILE_M + lane()), columns, valid);
        barrier_arrive_with_copies(pipe.full(place.stage));
    }
}

/* What the sums of a k-tile are multiplied with, for the rows of a thread: in the columns before
 * the first multiple of 128, and from there on. */
struct block_scales {
    float at[BLOCKS_M][2][COLUMN_SCALES];
};

DEVICE block_scales read_scales(const layout &at, const crew &w, int stage)
{
    block_scales scale;
    uint32_t from = shared_address(at.scales) + stage * SCALE_FLOATS * 4;
    int row = (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp + lane() / 4;
    float column[COLUMN_SCALES];
#pragma unroll
    for (int i = 0; i < COLUMN_SCALES; i++)
        column[i] = __uint_as_float(load_shared4(from + 4 * (TILE_M + i)));
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS_M; i++) {
        float line = __uint_as_float(load_shared4(from + 4 * (row + i / 2 * 64 + i % 2 * 8)));
#pragma unroll
        for (int j = 0; j < COLUMN_SCALES; j++)
            scale.at[i / 2][i % 2][j] = line * column[j];
    }
    return scale;
}

/* The sums of 64 rows and a k-tile, scaled, are added to those of the k-tiles before. A tile of
 * more than 128 columns, 64 of which are always scaled alike, begins at a multiple of 128 or, when
 * `early`, 64 before one. */
DEVICE void add_scaled(float (&sum)[SUMS], const wgmma_sum (&part)[SUMS],
                       const float (&scale)[2][COLUMN_SCALES], bool early)
{
    const int last = COLUMN_SCALES - 1;
    float middle[2] = {early ? scale[0][last] : scale[0][0], early ? scale[1][last] : scale[1][0]};
#pragma unroll
    for (int segment = 0; segment < SUMS; segment += 32) {
        float upper = segment == 0 ? scale[0][0] : segment == 32 ? middle[0] : scale[0][last];
        float lower = segment == 0 ? scale[1][0] : segment == 32 ? middle[1] : scale[1][last];
#pragma unroll
        for (int i = segment; i < segment + 32 && i < SUMS; i++)
            sum[i] += (i / 2 % 2 ? lower : upper) * (float)part[i];
    }
}

/* All of a unit's k, the sums of each k-tile and 64 rows multiplied with their scales. While this
 * warpgroup adds, others multiply. Scales are read while the last products of the k-tile before
 * run: products would wait for reads that stand between them. */
DEVICE void add_blocks(sums &sum, const unit &u, uint64_t a, uint64_t b, const layout &at,
                       const crew &w, const ring<STAGES> &pipe, ring_place<STAGES> &place)
{
    block_scales scale = {}, next = {};
    bool early = u.column % PRODUCT_SCALE_DEPTH != 0;
#pragma unroll
    for (int i = 0; i < BLOCKS_M * SUMS; i++)
        (&sum[0][0])[i] = 0;
    if (u.k_tiles > 0) {
        pipe.wait_full(place);
        if (SCALES == PRODUCT_SCALE_BLOCKS)
            scale = read_scales(at, w, place.stage);
    }
#pragma unroll 1
    for (int t = 0; t < u.k_tiles; t++) {
        int stage = place.stage;
        uint64_t from = (uint64_t)(stage * (STAGE_BYTES >> 4));
        place.next();
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++) {
            wgmma_sum part[SUMS];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < K_STEPS; i++)
                wgmma<TILE_N>::run<PRODUCT_ALONG_K, PRODUCT_ALONG_K>(
                    part, a + from + (64 * 128 >> 4) * m + wgmma_step(PRODUCT_ALONG_K, i),
                    b + from + wgmma_step(PRODUCT_ALONG_K, i), i > 0);
            wgmma_commit();
            if (m == BLOCKS_M - 1 && t + 1 < u.k_tiles) {
                pipe.wait_full(place);
                if (SCALES == PRODUCT_SCALE_BLOCKS)
                    next = read_scales(at, w, place.stage);
            }
            wgmma_wait<0>();
            wgmma_hold(part);
            if (m == BLOCKS_M - 1)
                pipe.release<CLUSTER>(stage);
            if (SCALES == PRODUCT_SCALE_BLOCKS)
                add_scaled(sum[m], part, scale.at[m], early);
            else
#pragma unroll
                for (int i = 0; i < SUMS; i++)
                    sum[m][i] += (float)part[i];
        }
        scale = next;
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
    product_scale columns = scales_of(c.b_scale, u);
    int row = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp + lane() / 4;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS_M; i++)
        s.row[i / 2][i % 2] =
            scale_of(c.a_scale, min(row + i / 2 * 64 + i % 2 * 8, c.m - 1));
    if (2 * w.thread < TILE_N)
#pragma unroll
        for (int i = 0; i < 2; i++)
            s.column[i] = scale_of(columns, min(u.column + 2 * w.thread + i, c.n - 1));
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
DEVICE void apply_scales(const wgmma_call &c, const unit &u, const crew &w, const layout &at,
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
    float factor = scale_of(c.a_scale, 0) * scale_of(scales_of(c.b_scale, u), 0);
#pragma unroll
    for (int i = 0; i < BLOCKS_M * SUMS; i++)
        put_scaled((&sum[0][0])[i], (float)(&sum[0][0])[i] * factor);
#endif
}

#endif
