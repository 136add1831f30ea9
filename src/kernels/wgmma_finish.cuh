/* How matmul_sm90.cu takes sums from registers to y: parts of k added up, bias, activation,
 * rounding, and stores through swizzled shared memory. Uses that file's knobs and sizes. */
#ifndef CUP_WGMMA_FINISH_CUH
#define CUP_WGMMA_FINISH_CUH

#include "hopper.cuh"
#include "product.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"

/* What shared memory holds; the first two at multiples of 1024 bytes. */
struct layout {
    uint32_t stages, staging, barriers;
    char *bias;
    unsigned *last;
};

/* One unit of work. */
struct unit {
    int row, column;    /* of y, where the tile of this block begins */
    int batch[2];
    int k, k_tiles;     /* the part of k, in tiles */
    int tile, part;
};

typedef float sums[BLOCKS_M][SUMS];

/* The warpgroup's place: number among the consumers, thread and warp within it. */
struct crew {
    int group, thread, warp;
};

/* Adds up the parts of k. True for the part that came last, whose sums are then those of all. */
DEVICE bool add_parts(const wgmma_call &c, const unit &u, const crew &w, const layout &at,
                      sums &sum)
{
    const int vectors = BLOCKS_M * SUMS / 4, crews = PINGPONG ? 1 : CONSUMERS;
    long long slot = (long long)u.tile * crews + (PINGPONG ? 0 : w.group);
    float4 *mine = (float4 *)c.partial + (slot * c.parts * vectors) * 128 + w.thread;
    float *flat = &sum[0][0];
#pragma unroll
    for (int i = 0; i < vectors; i++)
        __stcg(mine + (long long)(u.part * vectors + i) * 128,
               make_float4(flat[4 * i], flat[4 * i + 1], flat[4 * i + 2], flat[4 * i + 3]));
    __threadfence();
    meet(1 + w.group, 128);
    if (w.thread == 0) {
        unsigned count = atomicAdd(c.arrived + slot, 1);
        at.last[w.group] = count == (unsigned)c.parts - 1;
        if (count == (unsigned)c.parts - 1)
            c.arrived[slot] = 0;
        __threadfence();
    }
    meet(1 + w.group, 128);
    bool last = at.last[w.group];
    if (!last)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < vectors; i++) {
        float4 total = __ldcg(mine + (long long)i * 128);
        for (int part = 1; part < c.parts; part++) {
            float4 v = __ldcg(mine + (long long)(part * vectors + i) * 128);
            total.x += v.x;
            total.y += v.y;
            total.z += v.z;
            total.w += v.w;
        }
        flat[4 * i] = total.x;
        flat[4 * i + 1] = total.y;
        flat[4 * i + 2] = total.z;
        flat[4 * i + 3] = total.w;
    }
    return true;
}

/* Takes 16 rows of STAGE_COLUMNS to y (or pre): `v` are this thread's values as wgmma leaves them.
 * The warp's two buffers are used in turn. */
DEVICE void put_rows(const tensor_map &map, const unit &u, const layout &at, const crew &w,
                     int row, int column, int *turn, const float (&v)[STAGE_COLUMNS / 2])
{
    uint32_t buffer = at.staging + ((w.group * 4 + w.warp) * 2 + *turn) * 2048;
    *turn ^= 1;
    if (lane() == 0)
        tma_store_wait<1>();
    __syncwarp();
#if Y_T == CUP_F32
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = lane() / 4 + 8 * h, chunk = 2 * j + lane() % 4 / 2;
            uint32_t to = buffer + r * 128 + ((chunk ^ (r & 7)) << 4) + lane() % 2 * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[4 * j + 2 * h]),
                         "f"(v[4 * j + 2 * h + 1])
                         : "memory");
        }
#else
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS / 8; j += 2) {
        uint32_t words[4] = {
            pack(v[4 * j], v[4 * j + 1], result()), pack(v[4 * j + 2], v[4 * j + 3], result()),
            pack(v[4 * j + 4], v[4 * j + 5], result()), pack(v[4 * j + 6], v[4 * j + 7], result())};
        int r = lane() % 16, chunk = j + lane() / 16;
        store_matrices(buffer + r * 128 + ((chunk ^ (r & 7)) << 4), words);
    }
#endif
    publish_shared();
    __syncwarp();
    if (lane() == 0) {
        box b = {{column, row, u.batch[0], u.batch[1]}};
        tma_store<2 + BATCH>(map, buffer, b);
        tma_store_commit();
    }
}

/* The same where TMA cannot write: element by element. */
DEVICE void put_elements(const wgmma_call &c, void *y, const unit &u, int row, int column,
                         const float (&v)[STAGE_COLUMNS / 2])
{
    long long base = u.batch[0] * c.y_batch[0] + u.batch[1] * c.y_batch[1];
#pragma unroll
    for (int i = 0; i < STAGE_COLUMNS / 2; i++) {
        int r = row + lane() / 4 + 8 * (i / 2 % 2), j = column + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (r < c.m && j < c.n)
            ((result *)y)[base + r * c.y_row + j] = from_real<result>(v[i]);
    }
}

/* From sums to y, for the rows of the warp: bias, activation, rounding, store. */
DEVICE void finish(const wgmma_call &c, const tensor_map &y, const tensor_map &pre, const unit &u,
                   const layout &at, const crew &w, const T *bias, int *turn, const sums &sum)
{
    int first = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
        for (int j0 = 0; j0 < TILE_N; j0 += STAGE_COLUMNS) {
            int row = first + 64 * m, column = u.column + j0;
            float v[STAGE_COLUMNS / 2];
#pragma unroll
            for (int i = 0; i < STAGE_COLUMNS / 2; i++)
                v[i] = sum[m][j0 / 2 + i];
            if (HAS_BIAS)
#pragma unroll
                for (int i = 0; i < STAGE_COLUMNS / 2; i += 4) {
                    vec<T, 2> two = load_plain<2>(bias + j0 + 2 * i + lane() % 4 * 2);
                    v[i] += to_real(two.at[0]);
                    v[i + 1] += to_real(two.at[1]);
                    v[i + 2] += to_real(two.at[0]);
                    v[i + 3] += to_real(two.at[1]);
                }
            if (HAS_PRE && Y_DIRECT)
                put_elements(c, c.pre, u, row, column, v);
            else if (HAS_PRE)
                put_rows(pre, u, at, w, row, column, turn, v);
#pragma unroll
            for (int i = 0; i < STAGE_COLUMNS / 2; i++)
                v[i] = activated<result>(v[i]);
            if (Y_DIRECT)
                put_elements(c, c.y, u, row, column, v);
            else
                put_rows(y, u, at, w, row, column, turn, v);
        }
}

#endif
