/* linear_packed.cu for Hopper: the same products, with weights that stream through shared memory.
 *
 * A persistent grid. All of w is a sequence of stages, 16 rows by ROW_BYTES each, in which every
 * block has an equal part. One warp orders bulk copies into a ring of STAGES, a row a lane; eight
 * warps multiply, each 128 bytes of every row, while x comes a step ahead. Where a tile of 16 rows
 * begins or ends in another block, both leave sums in memory, and the one that comes last adds them
 * in the order of k. */
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

#define WARPS 8
#define THREADS (32 * WARPS + 32)
#define OCTETS (TOKENS / 8)
#define ROWS 16
#define ROW_BYTES 1024
#define ROW_K (ROW_BYTES * 8 / BITS)
#define PITCH (ROW_BYTES + 64) /* so that eight lanes of two rows read 32 banks */
#define STAGE_BYTES (ROWS * PITCH)
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

DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(0x12F0000000000000ull)
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
        if (lane() == 0)
            pipe.claim(place, bytes * rows);
        __syncwarp();
        if (lane() < rows)
            bulk_load(stages + place.stage * STAGE_BYTES + lane() * PITCH,
                      (const char *)c.b + (row + lane()) * c.b_mn + byte, bytes,
                      pipe.full(place.stage));
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

DEVICE void consume(const product_call &c, const packed_call &w, const stream_call &s,
                    const ring<STAGES> &pipe, uint32_t stages, float *all, unsigned *word)
{
    long long at = begin_of(s, blockIdx.x), end = begin_of(s, blockIdx.x + 1), first = at;
    int inside = threadIdx.x / 32 * 128 + lane() % 4 * 16, turn = 0;
    ring_place<STAGES> place = {0, 0};
    float sum[OCTETS][4] = {};
    side_data<2, OCTETS> now, next;
    long long row = at / s.per_tile * ROWS, part = at % s.per_tile;
    if (at < end)
        read_side(c, w, 0, row, part * ROW_K + inside * 8 / BITS, next);
    for (; at < end; at++) {
        pipe.wait_full(place);
        long long k = part * ROW_K + inside * 8 / BITS;
        bool last = part + 1 == s.per_tile;
#pragma unroll
        for (int half = 0; half < 2; half++, k += 512 / BITS) {
            now = next;
            if (half == 0)
                read_side(c, w, 0, row, k + 512 / BITS, next);
            else if (at + 1 < end)
                read_side(c, w, 0, last ? row + ROWS : row,
                          (last ? 0 : part + 1) * ROW_K + inside * 8 / BITS, next);
            uint32_t from = stages + place.stage * STAGE_BYTES + lane() / 4 * PITCH + inside;
            uint4 upper = load_shared16(from + half * 64);
            uint4 lower = load_shared16(from + half * 64 + 8 * PITCH);
            if (k >= c.k)
                upper = lower = make_uint4(0, 0, 0, 0);
            multiply_words(upper, lower, now, 0, sum);
        }
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
