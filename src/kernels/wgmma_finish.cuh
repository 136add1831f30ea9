/* How matmul_sm90.cu takes sums from registers to y: parts of k added up, bias, activation,
 * rounding, and stores through swizzled shared memory. Uses that file's knobs and sizes. */
#ifndef CUP_WGMMA_FINISH_CUH
#define CUP_WGMMA_FINISH_CUH

#include "hopper.cuh"
#include "product.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"
#include "wgmma_codes.cuh"
#include "wgmma_dropout.cuh"
#include "wgmma_other.cuh"

#ifndef STAGING_BUFFERS /* of a warp */
#define STAGING_BUFFERS 2
#endif

#ifndef ADDING /* whether y is added to */
#define ADDING 0
#endif

typedef float sums[BLOCKS_M][SUMS];

/* The warpgroup's place: number among the consumers, thread and warp within it. */
struct crew {
    int group, thread, warp;
};

#define CREWS (PINGPONG ? 1 : CONSUMERS)    /* warpgroups that own a part of a tile */
#define CHUNK_SUMS (STAGE_COLUMNS / 2)      /* of the columns that are staged at a time */
#define CHUNKS (BLOCKS_M * SUMS / CHUNK_SUMS)
/* Vectors of four sums that are on their way at a time: as many as registers are left for. */
#define BATCH_VECTORS (BLOCKS_M * SUMS >= 160 || STAGE_COLUMNS < 64 ? 4 : 8)

/* Whether this part of the tile finishes a chunk of the warpgroup's sums. */
DEVICE bool is_mine(const unit &u, int chunk)
{
    return !PARTS || (u.mine >> chunk & 1);
}

/* The chunks that part number `part` finishes, a bit for each. */
DEVICE unsigned chunks_of(const wgmma_call &c, int part)
{
    unsigned mine = 0;
#pragma unroll 1
    for (int chunk = part; chunk < CHUNKS; chunk += c.parts)
        mine |= 1u << chunk;
    return mine;
}

/* Waits until so many have come. There are no more blocks than the card holds at a time, and none
 * waits for a tile that comes after its own, so that all blocks of a tile get to it. */
DEVICE void wait_for(const unsigned *arrived, unsigned count)
{
    unsigned now;
    uint64_t since = WATCHDOG ? nanoseconds() : 0;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        if (WATCHDOG && nanoseconds() - since > WATCHDOG)
            __trap();
    } while (now < count);
}

/* Adds to vectors of sums what the other parts have, in the order of parts. */
DEVICE void add_others(const wgmma_call &c, const unit &u, const float4 *from, float *mine)
{
#pragma unroll 1
    for (int part = 0; part < c.parts; part++) {
        if (part == u.part)
            continue;
        const float4 *other = from + (long long)part * (BLOCKS_M * SUMS / 4 * 128);
        float4 v[BATCH_VECTORS];
#pragma unroll
        for (int i = 0; i < BATCH_VECTORS; i++)
            v[i] = __ldcg(other + i * 128);
#pragma unroll
        for (int i = 0; i < BATCH_VECTORS; i++) {
            mine[4 * i] += v[i].x;
            mine[4 * i + 1] += v[i].y;
            mine[4 * i + 2] += v[i].z;
            mine[4 * i + 3] += v[i].w;
        }
    }
}

/* The warpgroups that have the parts of a tile hand each other what each of them finishes. */
DEVICE void join_parts(const wgmma_call &c, const unit &u, const crew &w, sums &sum)
{
    const int vectors = BLOCKS_M * SUMS / 4, each = CHUNK_SUMS / 4;
    long long slot = (long long)u.tile * CREWS + (PINGPONG ? 0 : w.group);
    float4 *all = (float4 *)c.partial + slot * c.parts * vectors * 128 + w.thread;
    float4 *mine = all + (long long)u.part * vectors * 128;
    unsigned *arrived = c.arrived + slot;
    float *flat = &sum[0][0];
    if (c.parts == 1)
        return;
#pragma unroll
    for (int i = 0; i < vectors; i++)
        if (!is_mine(u, i / each))
            __stcg(mine + i * 128, make_float4(flat[4 * i], flat[4 * i + 1], flat[4 * i + 2],
                                               flat[4 * i + 3]));
    __threadfence();
    meet(1 + w.group, 128);
    if (w.thread == 0) {
        atomicAdd(arrived, 1);
        wait_for(arrived, c.parts);
        __threadfence();
    }
    meet(1 + w.group, 128);
#pragma unroll
    for (int i = 0; i < vectors; i += BATCH_VECTORS)
        if (is_mine(u, i / each))
            add_others(c, u, all + i * 128, flat + 4 * i);
    meet(1 + w.group, 128);
    if (w.thread == 0 && atomicAdd(arrived, 1) == 2 * (unsigned)c.parts - 1)
        *arrived = 0;
}

#if CLUSTER_K > 1

/* Where a cluster's blocks have the parts of a tile they send each other, and themselves, sums,
 * into the stages that none of them needs any more: a chunk's vectors from each part, one after
 * the other. */
#define CHUNK_VECTORS (CHUNK_SUMS / 4)
#define CHUNKS_EACH ((CHUNKS + CLUSTER_K - 1) / CLUSTER_K) /* that one part finishes, at most */
static_assert(CREWS * CHUNKS_EACH * CLUSTER_K * CHUNK_VECTORS * 2048 <= STAGES * STAGE_BYTES,
              "the sums of parts fit the stages");

/* The barrier that is told of them; and how many bytes come to a part. */
DEVICE uint32_t join_full(const layout &at)
{
    return at.barriers + 16 * STAGES + 24;
}

DEVICE uint32_t join_bytes(int part)
{
    int chunks = part < CHUNKS ? (CHUNKS - part - 1) / CLUSTER_K + 1 : 0;
    return CREWS * chunks * CLUSTER_K * CHUNK_VECTORS * 2048;
}

DEVICE uint32_t join_slot(const layout &at, const crew &w, int chunk, int from)
{
    int slot = (w.group * CHUNKS_EACH + chunk / CLUSTER_K) * CLUSTER_K + from;
    return at.stages + slot * CHUNK_VECTORS * 2048 + w.thread * 16;
}

DEVICE void join_cluster(const unit &u, const layout &at, const crew &w, sums &sum)
{
    float *flat = &sum[0][0];
    cluster_gather(); /* from here on nobody needs the stages */
#pragma unroll
    for (int i = 0; i < CHUNKS * CHUNK_VECTORS; i++) {
        int chunk = i / CHUNK_VECTORS, owner = chunk % CLUSTER_K;
        send16(join_slot(at, w, chunk, u.part) + i % CHUNK_VECTORS * 2048, join_full(at), owner,
               flat + 4 * i);
    }
    barrier_wait(join_full(at), 0);
#pragma unroll
    for (int i = 0; i < CHUNKS * CHUNK_VECTORS; i++) {
        int chunk = i / CHUNK_VECTORS;
        if (!is_mine(u, chunk))
            continue;
#pragma unroll
        for (int from = 0; from < CLUSTER_K; from++) {
            float v[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                         : "r"(join_slot(at, w, chunk, from) + i % CHUNK_VECTORS * 2048)
                         : "memory");
#pragma unroll
            for (int j = 0; j < 4; j++)
                flat[4 * i + j] = from ? flat[4 * i + j] + v[j] : v[j];
        }
    }
}

#else

DEVICE uint32_t join_full(const layout &at)
{
    return 0;
}

DEVICE uint32_t join_bytes(int part)
{
    return 0;
}

DEVICE void join_cluster(const unit &u, const layout &at, const crew &w, sums &sum) {}

#endif

/* Two elements of a tile's bias; zeros beyond the edge. */
DEVICE vec<bias_value, 2> load_bias(const wgmma_call &c, int column, int at)
{
    const bias_value *from = (const bias_value *)c.bias;
    vec<bias_value, 2> two = {};
    if (SWIGLU && at >= COLUMNS) {
        at -= COLUMNS;
        from += c.n;
    }
    if (column + at + 1 < c.n)
        two = load<2>(from + column + at);
    else if (column + at < c.n)
        two.at[0] = from[column + at];
    return two;
}

/* Eight values of sixteen columns of 8 rows and the 8 below: the product with its bias. */
DEVICE void biased(const wgmma_call &c, const float *sum, const bias_value *bias, float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = FACTOR ? c.factor * sum[i] : sum[i];
    if (HAS_BIAS)
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            vec<bias_value, 2> two = load_plain<2>(bias + 2 * i + lane() % 4 * 2);
            v[i] += to_real(two.at[0]);
            v[i + 1] += to_real(two.at[1]);
            v[i + 2] += to_real(two.at[0]);
            v[i + 3] += to_real(two.at[1]);
        }
}

/* Which values of a tile go out: of y, or before the activation; of the two halves that swiglu has
 * before, and its gradient as y. */
enum outlet { TO_Y, TO_PRE, TO_PRE_SECOND, TO_Y_SECOND };

template <outlet Outlet>
DEVICE void completed(const wgmma_call &c, const unit &u, const float *sum,
                      const bias_value *bias, int column, const other_tile &other, int row,
                      float (&v)[8])
{
    const int second = SWIGLU ? TILE_N / 2 : 0, at = Outlet == TO_PRE_SECOND ? second : 0;
    biased(c, sum + (column + at) / 2, bias + column + at, v);
    if (Outlet == TO_PRE || Outlet == TO_PRE_SECOND)
        return;
    if (SWIGLU) {
        float up[8];
        biased(c, sum + (column + second) / 2, bias + column + second, up);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = silu_short(v[i]) * up[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = activated<result>(v[i]);
    if (DROPOUT)
        drop(c, u.row + row, u.column + column, v);
    if (OTHER) {
        float o[8], second[8] = {};
        read_other(other, 0, row, column, o);
        if (OTHER == PRODUCT_SWIGLU_GRAD && Outlet == TO_Y)
            read_other(other, 1, row, column, second);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (OTHER == PRODUCT_ADD)
                v[i] += o[i];
            else if (OTHER == PRODUCT_GELU_GRAD)
                v[i] *= gelu_slope_short(o[i]);
            else if (Outlet == TO_Y_SECOND)
                v[i] *= silu_short(o[i]);
            else
                v[i] *= second[i] * silu_slope_short(o[i]);
    }
}

DEVICE void stage(uint32_t buffer, int column, const float (&v)[8])
{
#if CODES
    stage_codes(buffer, column, v);
#elif Y_T == CUP_F32
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        int r = lane() / 4 + i / 2 % 2 * 8, piece = (column + i / 4 * 8) / 4 + lane() % 4 / 2;
        uint32_t to = staged_at(buffer, r, piece) + lane() % 2 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[i]), "f"(v[i + 1])
                     : "memory");
    }
#else
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = pack(v[2 * i], v[2 * i + 1], result());
    store_matrices(staged_at(buffer, lane() % 16, column / 8 + lane() / 16), words);
#endif
}

/* From the staged 16 rows to y where TMA cannot write, element by element. */
DEVICE void put_elements(const wgmma_call &c, result *y, const unit &u, int row, int column,
                         uint32_t buffer)
{
    const int end = GROUPS == PRODUCT_GROUPS_OF_ROWS ? u.row_end : c.m;
    y += u.batch[0] * c.y_batch[0] + u.batch[1] * c.y_batch[1] + column;
    const int each = 4 / sizeof(result); /* elements of a line that a lane takes */
#pragma unroll 1
    for (int r = 0; r < 16 && row + r < end && lane() < STAGE_LINE / 4; r++) {
        uint32_t word, from = staged_at(buffer, r, lane() / 4) + lane() % 4 * 4;
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
template <outlet Outlet>
DEVICE void put_rows(const wgmma_call &c, const tensor_map &map, const unit &u, const layout &at,
                     const crew &w, const float *sum, const bias_value *bias, coder &code, int row,
                     int j0, int *turn)
{
    uint32_t buffer = at.staging + ((w.group * 4 + w.warp) * STAGING_BUFFERS + *turn) * 2048;
    *turn = (*turn + 1) % STAGING_BUFFERS;
    other_tile other = {at.other};
    int line = row - u.row + lane() / 4;
    if (lane() == 0)
        tma_store_wait<STAGING_BUFFERS - 1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS; j += 16) {
        float v[8];
        completed<Outlet>(c, u, sum, bias, j0 + j, other, line, v);
        if (CODES)
            code.take(c, row + lane() / 4, v);
        stage(buffer, j, v);
    }
    if (Y_DIRECT || (GROUPS == PRODUCT_GROUPS_OF_ROWS && row + 16 > u.row_end)) {
        __syncwarp();
        put_elements(c, (result *)(Outlet == TO_PRE ? c.pre : c.y), u, row, u.column + j0, buffer);
        if (lane() == 0)
            tma_store_commit(); /* so that buffers and stores stay in step */
        return;
    }
    publish_shared();
    __syncwarp();
    if (lane() == 0) {
        int matrix = GROUPS == PRODUCT_GROUPS_OF_ROWS ? 0 : u.batch[0];
        box b = {{u.column + j0, row, matrix, u.batch[1]}};
        if (SWIGLU && Outlet != TO_Y || OTHER == PRODUCT_SWIGLU_GRAD) {
            b.at[2] = Outlet == TO_PRE_SECOND || Outlet == TO_Y_SECOND;
            tma_store<3>(map, buffer, b);
        } else if (ADDING) {
            tma_add<2 + BATCH>(map, buffer, b);
        } else {
            tma_store<2 + BATCH>(map, buffer, b);
        }
        tma_store_commit();
    }
}

/* From sums to y, for the rows of the warp. */
DEVICE void finish(const wgmma_call &c, const tensor_map &y, const tensor_map &pre, const unit &u,
                   const layout &at, const crew &w, const bias_value *bias, coder &code, int *turn,
                   const sums &sum)
{
    int first = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += STAGE_COLUMNS) {
            int row = first + 64 * m;
            if (!is_mine(u, (m * COLUMNS + j) / STAGE_COLUMNS))
                continue;
            if (HAS_PRE)
                put_rows<TO_PRE>(c, pre, u, at, w, sum[m], bias, code, row, j, turn);
            if (HAS_PRE && SWIGLU)
                put_rows<TO_PRE_SECOND>(c, pre, u, at, w, sum[m], bias, code, row, j, turn);
            put_rows<TO_Y>(c, y, u, at, w, sum[m], bias, code, row, j, turn);
            if (OTHER == PRODUCT_SWIGLU_GRAD)
                put_rows<TO_Y_SECOND>(c, y, u, at, w, sum[m], bias, code, row, j, turn);
        }
}

#endif
