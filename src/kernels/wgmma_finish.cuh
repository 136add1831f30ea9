/* How matmul_sm90.cu takes sums from registers to y: parts of k added up, bias, activation,
 * rounding, and stores through swizzled shared memory. Uses that file's knobs and sizes. */
#ifndef CUP_WGMMA_FINISH_CUH
#define CUP_WGMMA_FINISH_CUH

#include "hopper.cuh"
#include "product.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"

#ifndef STAGING_BUFFERS /* of a warp */
#define STAGING_BUFFERS 2
#endif

/* What shared memory holds; the first two at multiples of 1024 bytes. */
struct layout {
    uint32_t stages, staging, barriers;
    char *bias, *scales;
    unsigned *last;
};

/* One unit of work. */
struct unit {
    int row, column;    /* of y, where the tile of this block begins */
    int row_end;        /* with GROUPS of rows, where those of the group end */
    int k_first, depth; /* with GROUPS of k, where that begins, and what is left of the last tile */
    int batch[2];
    int k, k_tiles;     /* the part of k, in tiles */
    int tile, part;
};

typedef float sums[BLOCKS_M][SUMS];

/* The warpgroup's place: number among the consumers, thread and warp within it. */
struct crew {
    int group, thread, warp;
};

/* Vectors of a part that are on their way at a time: as many as registers are left for. */
#define PARTS_BATCH (BLOCKS_M * SUMS / 4 <= 32 && BLOCKS_M * SUMS % 64 == 0 ? 16 : 8)

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
    for (int i = 0; i < vectors; i += PARTS_BATCH)
#pragma unroll 1
        for (int part = 0; part < c.parts; part++) {
            float4 v[PARTS_BATCH];
#pragma unroll
            for (int j = 0; j < PARTS_BATCH; j++)
                v[j] = __ldcg(mine + (long long)(part * vectors + i + j) * 128);
#pragma unroll
            for (int j = 0; j < PARTS_BATCH; j++) {
                float *to = flat + 4 * (i + j);
                to[0] = v[j].x + (part ? to[0] : 0);
                to[1] = v[j].y + (part ? to[1] : 0);
                to[2] = v[j].z + (part ? to[2] : 0);
                to[3] = v[j].w + (part ? to[3] : 0);
            }
        }
    return true;
}

/* Eight values of sixteen columns of 8 rows and the 8 below: what a sum becomes in y, or in pre. */
template <bool Pre>
DEVICE void completed(const float *sum, const result *bias, int column, float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = sum[i];
    if (HAS_BIAS)
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            vec<result, 2> two = load_plain<2>(bias + column + 2 * i + lane() % 4 * 2);
            v[i] += to_real(two.at[0]);
            v[i + 1] += to_real(two.at[1]);
            v[i + 2] += to_real(two.at[0]);
            v[i + 3] += to_real(two.at[1]);
        }
    if (!Pre)
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = activated<result>(v[i]);
}

/* Puts them where TMA looks for them: 16-byte pieces of lines of 128 bytes, mixed by the line. */
DEVICE void stage(uint32_t buffer, int column, const float (&v)[8])
{
#if Y_T == CUP_F32
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        int r = lane() / 4 + i / 2 % 2 * 8, piece = (column + i / 4 * 8) / 4 + lane() % 4 / 2;
        uint32_t to = buffer + r * 128 + ((piece ^ (r & 7)) << 4) + lane() % 2 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[i]), "f"(v[i + 1])
                     : "memory");
    }
#else
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = pack(v[2 * i], v[2 * i + 1], result());
    int r = lane() % 16, piece = column / 8 + lane() / 16;
    store_matrices(buffer + r * 128 + ((piece ^ (r & 7)) << 4), words);
#endif
}

/* From the staged 16 rows to y where TMA cannot write, element by element. */
DEVICE void put_elements(const wgmma_call &c, result *y, const unit &u, int row, int column,
                         uint32_t buffer)
{
    const int end = GROUPS == PRODUCT_GROUPS_OF_ROWS ? u.row_end : c.m;
    y += u.batch[0] * c.y_batch[0] + u.batch[1] * c.y_batch[1] + column;
    const int each = STAGE_COLUMNS / 32; /* elements of a line that a lane takes */
#pragma unroll 1
    for (int r = 0; r < 16 && row + r < end; r++) {
        uint32_t word, from = buffer + r * 128 + ((lane() / 4 ^ (r & 7)) << 4) + lane() % 4 * 4;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        const result *values = (const result *)&word;
#pragma unroll
        for (int i = 0; i < each; i++)
            if (column + lane() * each + i < c.n)
                y[(row + r) * c.y_row + lane() * each + i] = values[i];
    }
    __syncwarp();
}

/* Takes 16 rows of STAGE_COLUMNS to y, or to pre. The warp's buffers are used in turn. */
template <bool Pre>
DEVICE void put_rows(const wgmma_call &c, const tensor_map &map, const unit &u, const layout &at,
                     const crew &w, const float *sum, const result *bias, int row, int j0,
                     int *turn)
{
    uint32_t buffer = at.staging + ((w.group * 4 + w.warp) * STAGING_BUFFERS + *turn) * 2048;
    *turn = (*turn + 1) % STAGING_BUFFERS;
    if (lane() == 0)
        tma_store_wait<STAGING_BUFFERS - 1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS; j += 16) {
        float v[8];
        completed<Pre>(sum + (j0 + j) / 2, bias, j0 + j, v);
        stage(buffer, j, v);
    }
    if (Y_DIRECT || (GROUPS == PRODUCT_GROUPS_OF_ROWS && row + 16 > u.row_end)) {
        __syncwarp();
        put_elements(c, (result *)(Pre ? c.pre : c.y), u, row, u.column + j0, buffer);
        if (lane() == 0)
            tma_store_commit(); /* so that buffers and stores stay in step */
        return;
    }
    publish_shared();
    __syncwarp();
    if (lane() == 0) {
        int matrix = GROUPS == PRODUCT_GROUPS_OF_ROWS ? 0 : u.batch[0];
        box b = {{u.column + j0, row, matrix, u.batch[1]}};
        tma_store<2 + BATCH>(map, buffer, b);
        tma_store_commit();
    }
}

/* From sums to y, for the rows of the warp. */
DEVICE void finish(const wgmma_call &c, const tensor_map &y, const tensor_map &pre, const unit &u,
                   const layout &at, const crew &w, const result *bias, int *turn, const sums &sum)
{
    int first = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
        for (int j = 0; j < TILE_N; j += STAGE_COLUMNS) {
            int row = first + 64 * m;
            if (HAS_PRE)
                put_rows<true>(c, pre, u, at, w, sum[m], bias, row, j, turn);
            put_rows<false>(c, y, u, at, w, sum[m], bias, row, j, turn);
        }
}

#endif
