/* Convolutions of few results on Hopper, of 16-bit elements with sums in f32: the image is brought
 * to shared memory once for all taps.
 *
 * A tile is some blocks of 8 x 8 places. TMA brings it with its halo, what its taps reach around
 * it, 64 channels of each place as a line of 128 bytes; a tap is how many lines further products
 * read, as the swizzle goes by addresses and eight places beside each other are eight lines
 * wherever they begin. The weight of all taps stays in shared memory. So 1.3 times the image is
 * taken from L2, where a product of taps takes it nine times, which is what holds that one back.
 *
 * A persistent grid, one block an SM: one thread orders copies into a ring of STAGES tiles, two
 * warpgroups have half of the blocks of each tile. Nothing but the ring holds them together, so
 * that one multiplies while the other takes its sums to y.
 *
 * 2 taps channels results operations a place. */
#include "product.cuh"

/* Knobs: TILE_N columns of y, all of them; CHANNEL_CHUNKS of 64 channels, and of one alone K_STEPS
 * of 16; TAPS_HIGH, TAPS_WIDE and how many places APART_HIGH, APART_WIDE they are; GROUP_HIGH and
 * GROUP_WIDE blocks of a warpgroup, the second one's SIDE_BY_SIDE with the first one's or below
 * them; STAGES; STAGING_BUFFERS. */
#define CONSUMERS 2
#define PINGPONG 0
#define CLUSTER_M 1
#define CLUSTER_N 1
#define CLUSTER_K 1
#define BATCH 0
#define HAS_PRE 0
#define PARTS 0
#ifndef SCALES
#define SCALES PRODUCT_SCALE_NONE
#endif
#define PROMOTE 0
#define Y_DIRECT 0
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif

#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#include "conv_halo.cuh"

#define TILE_K (128 / (int)sizeof(T))
#define PANEL (64 * 128) /* bytes of 64 lines of 128 */
#define CLUSTER 1
#define BLOCK 8 /* places along each side of a block */
#define BLOCKS_M (GROUP_HIGH * GROUP_WIDE)
#define ROWS (64 * BLOCKS_M)
#define TILE_M (CONSUMERS * ROWS)
#define TILE_HIGH (BLOCK * GROUP_HIGH * (SIDE_BY_SIDE ? 1 : CONSUMERS))
#define TILE_WIDE (BLOCK * GROUP_WIDE * (SIDE_BY_SIDE ? CONSUMERS : 1))
#define TAPS (TAPS_HIGH * TAPS_WIDE)
#define PITCH (TILE_WIDE + (TAPS_WIDE - 1) * APART_WIDE) /* lines from row to row of a stage */
#define A_LINES (PITCH * (TILE_HIGH + (TAPS_HIGH - 1) * APART_HIGH))
#define A_BYTES (A_LINES * 128)
#define STAGE_BYTES ((A_BYTES + 1023) / 1024 * 1024)
#define B_LINES (B_ALONG == PRODUCT_ALONG_K ? TILE_N : (TILE_N + 63) / 64 * 64)
#define B_BYTES (B_LINES * 128)
#define WEIGHT_BYTES (CHANNEL_CHUNKS * TAPS * B_BYTES)
#define THREADS (128 * (CONSUMERS + 1))
#define SUMS (TILE_N / 2) /* registers for 64 rows */
#define BRINGER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#define STAGING_BYTES (CONSUMERS * 4 * STAGING_BUFFERS * STAGE_PIECE)
#define BIAS_BYTES (HAS_BIAS ? TILE_N * 4 : 0)

typedef dtype_of<Y_T>::type result;
typedef dtype_of<BIAS_T>::type bias_value;

#if CUP_HAS_WGMMA

#include "wgmma_finish.cuh"

struct places {
    int row, column, image;
};

/* Where a tile begins. */
DEVICE places tile_at(const conv_halo &v, int index)
{
    unsigned rest = (unsigned)index;
    int column = (int)split(&rest, v.tiles[1]), row = (int)split(&rest, v.tiles[0]);
    return {row * TILE_HIGH, column * TILE_WIDE, (int)rest};
}

struct room {
    uint32_t weight, stages, staging, barriers;
    float *bias;
};

DEVICE room lay_out()
{
    extern __shared__ __align__(1024) char shared[];
    room at;
    at.weight = shared_address(shared);
    at.stages = at.weight + WEIGHT_BYTES;
    at.staging = at.stages + STAGES * STAGE_BYTES;
    at.bias = (float *)(shared + (at.staging - at.weight) + STAGING_BYTES);
    at.barriers = at.staging + STAGING_BYTES + BIAS_BYTES;
    return at;
}

DEVICE uint32_t weight_full(const room &at)
{
    return at.barriers + 16 * STAGES;
}

DEVICE void bring_weight(const conv_halo &v, const tensor_map &map, const room &at)
{
    barrier_expect(weight_full(at), WEIGHT_BYTES);
#pragma unroll 1
    for (int i = 0; i < CHANNEL_CHUNKS * TAPS; i++) {
        int chunk = i / TAPS, tap = i % TAPS;
        int matrix = v.weight + tap / TAPS_WIDE * v.weight_step[0] +
                     tap % TAPS_WIDE * v.weight_step[1];
        uint32_t to = at.weight + i * B_BYTES;
        if (B_ALONG == PRODUCT_ALONG_K)
            tma_load<3>(map, to, {{chunk * TILE_K, 0, matrix}}, weight_full(at), TMA_EVICT_LAST);
        else
            for (int n = 0; n < B_LINES; n += 64)
                tma_load<3>(map, to + n * 128, {{n, chunk * TILE_K, matrix}}, weight_full(at),
                            TMA_EVICT_LAST);
    }
}

/* The one thread that orders all copies. */
DEVICE void produce(const conv_halo &v, const tensor_map &a, const tensor_map &b, const room &at,
                    const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    bring_weight(v, b, at);
    for (int i = blockIdx.x; i < v.all.units; i += gridDim.x) {
        places first = tile_at(v, i);
        for (int chunk = 0; chunk < CHANNEL_CHUNKS; chunk++, place.next()) {
            pipe.claim(place, A_BYTES);
            tma_load<4>(a, at.stages + place.stage * STAGE_BYTES,
                        {{chunk * TILE_K, first.column + v.from[1], first.row + v.from[0],
                          first.image}},
                        pipe.full(place.stage), TMA_EVICT_NORMAL);
        }
    }
}

/* What all taps of 64 channels add, for the blocks of a warpgroup. */
DEVICE void multiply(sums &sum, uint64_t a, uint64_t b, bool add)
{
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        const int line = tap / TAPS_WIDE * APART_HIGH * PITCH + tap % TAPS_WIDE * APART_WIDE;
#pragma unroll
        for (int i = 0; i < K_STEPS; i++)
#pragma unroll
            for (int m = 0; m < BLOCKS_M; m++) {
                const int below = m / GROUP_WIDE * BLOCK * PITCH + m % GROUP_WIDE * BLOCK;
                wgmma<TILE_N>::run<PRODUCT_ALONG_K, B_ALONG>(
                    sum[m], a + (uint64_t)((line + below) * (128 >> 4)) + wgmma_step(0, i),
                    b + (uint64_t)(tap * (B_BYTES >> 4)) + wgmma_step(B_ALONG, i),
                    add || tap > 0 || i > 0);
            }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
        wgmma_hold(sum[m]);
}

/* What x and the weight were divided by. */
DEVICE void apply_scales(const wgmma_call &c, sums &sum)
{
#if SCALES == PRODUCT_SCALE_ONE
    float factor = *c.a_scale.data * *c.b_scale.data;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[m][i] *= factor;
#endif
}

/* Where the blocks of a warpgroup begin in its tile. */
DEVICE places blocks_of(int group)
{
    return SIDE_BY_SIDE ? places{0, group * GROUP_WIDE * BLOCK, 0}
                        : places{group * GROUP_HIGH * BLOCK, 0, 0};
}

/* The warp's two rows of eight places of block m, STAGE_COLUMNS results of them, go to y. */
DEVICE void put_block(const conv_halo &v, const tensor_map &y, const places &first, const unit &u,
                      const room &at, const crew &w, const float *sum, int m, int column,
                      int *turn)
{
    uint32_t buffer = at.staging + ((w.group * 4 + w.warp) * STAGING_BUFFERS + *turn) * STAGE_PIECE;
    *turn = (*turn + 1) % STAGING_BUFFERS;
    if (lane() == 0)
        tma_store_wait<STAGING_BUFFERS - 1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS; j += 16) {
        float values[8];
        completed<TO_Y>(v.all, u, sum, at.bias, column + j, other_tile{0}, 0, values);
        stage(buffer, j, values);
    }
    publish_shared();
    __syncwarp();
    if (lane() == 0) {
        tma_store<4>(y, buffer,
                     {{column, first.column + m % GROUP_WIDE * BLOCK,
                       first.row + m / GROUP_WIDE * BLOCK + 2 * w.warp, first.image}});
        tma_store_commit();
    }
}

DEVICE void finish_tile(const conv_halo &v, const tensor_map &y, int index, const room &at,
                        const crew &w, const sums &sum, int *turn)
{
    places first = tile_at(v, index), mine = blocks_of(w.group);
    unit u = {};
    first.row += mine.row;
    first.column += mine.column;
#pragma unroll
    for (int j = 0; j < TILE_N; j += STAGE_COLUMNS) {
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++) {
            put_block(v, y, first, u, at, w, sum[m], m, j, turn);
        }
    }
}

DEVICE void consume(const conv_halo &v, const tensor_map &y, const room &at,
                    const ring<STAGES> &pipe)
{
    crew w = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128, (int)threadIdx.x % 128 / 32};
    w.group = __shfl_sync(0xffffffff, w.group, 0);
    w.warp = __shfl_sync(0xffffffff, w.warp, 0);
    places mine = blocks_of(w.group);
    uint64_t a = wgmma_describe(at.stages + (mine.row * PITCH + mine.column) * 128,
                                PRODUCT_ALONG_K, PANEL);
    uint64_t b = wgmma_describe(at.weight, B_ALONG, PANEL);
    /* Eight lines and the next eight are those of places below each other. */
    a += ((uint64_t)(PITCH * 128 >> 4) - (1024 >> 4)) << 32;
    ring_place<STAGES> place = {0, 0};
    int turn = 0;
    barrier_wait(weight_full(at), 0);
    for (int i = blockIdx.x; i < v.all.units; i += gridDim.x) {
        sums sum;
#pragma unroll 1
        for (int chunk = 0; chunk < CHANNEL_CHUNKS; chunk++, place.next()) {
            pipe.wait_full(place);
            multiply(sum, a + (uint64_t)(place.stage * (STAGE_BYTES >> 4)),
                     b + (uint64_t)(chunk * TAPS * (B_BYTES >> 4)), chunk > 0);
            pipe.release<1>(place.stage);
        }
        apply_scales(v.all, sum);
        finish_tile(v, y, i, at, w, sum, &turn);
    }
    if (lane() == 0)
        tma_store_wait<0>();
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_halo_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                   const __grid_constant__ tensor_map y, const __grid_constant__ conv_halo v)
{
#if CUP_HAS_WGMMA
    room at = lay_out();
    ring<STAGES> pipe = {at.barriers};
    if (threadIdx.x == 0) {
        tma_prefetch_map(a);
        tma_prefetch_map(b);
        tma_prefetch_map(y);
        barrier_init(weight_full(at), 1);
        pipe.init(4 * CONSUMERS);
    }
    wait_for_previous_kernel();
    if (HAS_BIAS && 2 * threadIdx.x < TILE_N)
        keep_bias(at.bias + 2 * threadIdx.x, load_bias(v.all, 0, 2 * threadIdx.x));
    __syncthreads();
    let_next_kernel_start();
    if (threadIdx.x < 128) {
        registers_give<BRINGER_REGISTERS>();
        if (threadIdx.x < 32 && elected())
            produce(v, a, b, at, pipe);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume(v, y, at, pipe);
    }
#endif
}
