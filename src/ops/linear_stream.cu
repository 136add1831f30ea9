/* linear_packed.cu for Hopper: the same products, with weights that stream through shared memory.
 *
 * A persistent grid. All of w is a sequence of stages, 16 rows by ROW_BYTES each, in which every
 * block has an equal part. One warp orders bulk copies into a ring of STAGES, a row a lane, and
 * what of x belongs to them; eight warps multiply, each 128 bytes of every row, out of shared
 * memory. Where a tile of 16 rows begins or ends in another block, both leave sums in memory, and
 * the one that comes last adds them in the order of k. */
#ifndef CUP_T
#define CUP_T 3
#endif
#ifndef TOKENS /* rows of x, a multiple of 8 */
#define TOKENS 8
#endif
#ifndef STAGES
#define STAGES 12
#endif
#include "packed.cuh"
#include "pipe.cuh"
#include "tma.cuh"

#define WARPS 8
#define THREADS (32 * WARPS + 32)
#define OCTETS (TOKENS / 8)
#define ROWS 16
#define ROW_BYTES 1024
#define ROW_K (ROW_BYTES * 8 / BITS)
#define PITCH (ROW_BYTES + 64) /* so that eight lanes of two rows read 32 banks */
#define X_BYTES (ROW_K * 2)
#define X_PITCH (X_BYTES + (BITS == 16 ? 64 : 16))
#define X_PLACE (ROWS * PITCH)
#define STAGE_BYTES (X_PLACE + TOKENS * X_PITCH)
#define COUNT (TOKENS * ROWS)
#define SUMS_BYTES (2 * WARPS * COUNT * 4)

#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)

DEVICE long long begin_of(const stream_call &s, long long block)
{
    return block * s.stages / gridDim.x;
}

/* The block in whose part a stage lies. */
DEVICE long long block_of(const stream_call &s, long long stage)
{
    return ((stage + 1) * gridDim.x - 1) / s.stages;
}

DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                      uint64_t hint)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(hint)
                 : "memory");
}

DEVICE void produce(const product_call &c, const stream_call &s, const ring<STAGES> &pipe,
                    uint32_t stages)
{
    ring_place<STAGES> place = {0, 0};
    long long end = begin_of(s, blockIdx.x + 1), line = c.k * BITS / 8;
    for (long long at = begin_of(s, blockIdx.x); at < end; at++, place.next()) {
        long long row = at / s.per_tile * ROWS, byte = at % s.per_tile * ROW_BYTES;
        uint32_t bytes = (uint32_t)min(line - byte, (long long)ROW_BYTES);
        int rows = (int)min(c.n - row, (long long)ROWS);
        int tokens = (int)min(c.m, (long long)TOKENS), mine = lane() - 16;
        uint32_t x_bytes = bytes / BITS * 16, stage = stages + place.stage * STAGE_BYTES;
        if (lane() == 0)
            pipe.claim(place, bytes * rows + x_bytes * tokens);
        __syncwarp();
        if (mine < 0 && lane() < rows)
            bulk_load(stage + lane() * PITCH, (const char *)c.b + (row + lane()) * c.b_mn + byte,
                      bytes, pipe.full(place.stage), TMA_EVICT_FIRST);
        if (mine >= 0 && mine < tokens)
            bulk_load(stage + X_PLACE + mine * X_PITCH,
                      (const T *)c.a + mine * c.a_mn + byte / BITS * 8, x_bytes,
                      pipe.full(place.stage), TMA_EVICT_NORMAL);
    }
}

/* Adds up what the warps have of a tile, and writes it, or leaves it to the block that comes last.
 * `first` is the first stage of this block's part of the tile, `last` the one behind it. */
DEVICE void finish(const product_call &c, const stream_call &s, float *all, unsigned *word,
                   float (&sum)[OCTETS][4], long long first, long long last)
{
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int l = 0; l < 4; l++) {
            int token = 8 * o + lane() % 4 * 2 + l % 2, row = lane() / 4 + l / 2 * 8;
            all[warp * COUNT + token * ROWS + row] = sum[o][l];
            sum[o][l] = 0;
        }
    meet(1, 32 * WARPS);
    int i = threadIdx.x;
    float total = 0;
    if (i < COUNT)
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total += all[w * COUNT + i];
    long long tile = first / s.per_tile, begin = tile * s.per_tile, end = begin + s.per_tile;
    if (first != begin || last != end) {
        bool leads = first == begin_of(s, blockIdx.x);
        if (i < COUNT)
            __stcg(s.partial + (blockIdx.x * 2 + !leads) * COUNT + i, total);
        __threadfence();
        meet(1, 32 * WARPS);
        long long from = block_of(s, begin), to = block_of(s, end - 1);
        if (i == 0) {
            *word = atomicAdd(s.arrived + tile, 1u) == (unsigned)(to - from);
            if (*word)
                s.arrived[tile] = 0;
            __threadfence();
        }
        meet(1, 32 * WARPS);
        if (!*word || i >= COUNT)
            return;
        __threadfence();
        total = 0;
        for (long long block = from; block <= to; block++) {
            bool other_leads = begin_of(s, block) >= begin;
            total += __ldcg(s.partial + (block * 2 + !other_leads) * COUNT + i);
        }
    }
    if (i < COUNT)
        put(c, i / ROWS, tile * ROWS + i % ROWS, total);
}

/* The scales of both halves of a warp's part of a stage. */
struct scales {
    group_scale of[2][BITS == 16 ? 1 : 2];
};

DEVICE void read_scales(const product_call &c, const packed_call &w, long long row, long long k,
                        scales &to)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        read_group_scales<2>(c, w, row, k + half * (512 / BITS), to.of[half]);
}

/* Half of a warp's part of a stage: 64 bytes of every row. */
DEVICE void multiply_half(const product_call &c, uint32_t stage, int inside, long long k,
                          const group_scale *scale, float (&sum)[OCTETS][4])
{
    side_data<2, OCTETS> side;
    uint32_t from = stage + lane() / 4 * PITCH + inside;
    uint4 upper = load_shared16(from), lower = load_shared16(from + 8 * PITCH);
    uint32_t x = stage + X_PLACE + lane() / 4 * X_PITCH + inside / BITS * 16;
    bool valid = k < c.k;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int i = 0; i < X_WORDS; i++) {
            uint4 v = load_shared16(x + 8 * o * X_PITCH + 16 * i);
            side.x[i][o] = valid ? v : make_uint4(0, 0, 0, 0);
        }
    if (!valid)
        upper = lower = make_uint4(0, 0, 0, 0);
#if BITS < 16
    side.scale[0] = scale[0];
    side.scale[1] = scale[1];
#endif
#if BITS == 4
#pragma unroll
    for (int i = 0; i < X_WORDS * OCTETS; i++)
        (&side.x[0][0])[i] = shuffled((&side.x[0][0])[i]);
#endif
    multiply_words(upper, lower, side, 0, sum);
}

DEVICE void consume(const product_call &c, const packed_call &w, const stream_call &s,
                    const ring<STAGES> &pipe, uint32_t stages, float *all, unsigned *word)
{
    long long at = begin_of(s, blockIdx.x), end = begin_of(s, blockIdx.x + 1), first = at;
    int inside = threadIdx.x / 32 * 128 + lane() % 4 * 16, turn = 0;
    ring_place<STAGES> place = {0, 0};
    float sum[OCTETS][4] = {};
    scales now, next;
    long long row = at / s.per_tile * ROWS, part = at % s.per_tile, k0 = inside / BITS * 8;
    if (at < end)
        read_scales(c, w, row, part * ROW_K + k0, next);
    for (; at < end; at++) {
        long long k = part * ROW_K + k0;
        bool last = part + 1 == s.per_tile;
        now = next;
        if (at + 1 < end)
            read_scales(c, w, last ? row + ROWS : row, (last ? 0 : part + 1) * ROW_K + k0, next);
        pipe.wait_full(place);
        uint32_t stage = stages + place.stage * STAGE_BYTES;
        multiply_half(c, stage, inside, k, now.of[0], sum);
        multiply_half(c, stage, inside + 64, k + 512 / BITS, now.of[1], sum);
        __syncwarp();
        pipe.release<1>(place.stage);
        place.next();
        if (last || at + 1 == end) {
            finish(c, s, all + turn * WARPS * COUNT, word + turn, sum, first, at + 1);
            turn ^= 1;
            first = at + 1;
        }
        row += last ? ROWS : 0;
        part = last ? 0 : part + 1;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_stream(const __grid_constant__ product_call c, const __grid_constant__ packed_call w,
                  const __grid_constant__ stream_call s)
{
#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)
    extern __shared__ __align__(128) char shared[];
    __shared__ unsigned word[2];
    float *all = (float *)(shared + STAGES * STAGE_BYTES);
    uint32_t stages = shared_address(shared);
    ring<STAGES> pipe = {stages + STAGES * STAGE_BYTES + SUMS_BYTES};
    if (threadIdx.x == 0)
        pipe.init(WARPS);
    __syncthreads();
    if (threadIdx.x / 32 == WARPS)
        produce(c, s, pipe, stages);
    else
        consume(c, w, s, pipe, stages, all, word);
#endif
}
