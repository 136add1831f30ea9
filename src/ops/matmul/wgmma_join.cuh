/* How parts of k of a tile of wgmma.cu meet: the sums of several blocks are added up, through
 * memory or within a cluster, always in the order of the parts. With that file's knobs. */
#ifndef CUP_OPS_MATMUL_WGMMA_JOIN_CUH
#define CUP_OPS_MATMUL_WGMMA_JOIN_CUH

#include "hopper.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"

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

#endif
