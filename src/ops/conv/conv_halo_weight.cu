/* The gradient of the weight of a convolution of few channels on Hopper, of 16-bit elements with
 * sums in f32: the image is brought to shared memory once for all taps, as in conv_halo.cu.
 *
 * A block has 64 results and 64 channels under all taps, and a share of the places, in tiles. TMA
 * brings the tile's part of dy, and the image with what taps reach around it; a place is a line of
 * 128 bytes of each. Places are the k of the products, eight beside each other and the eight below
 * them a step. A warpgroup has the taps of a row of the kernel: one product whose columns are the
 * channels under each of them, panels that overlap as they are a line apart. What a block has
 * summed is a part, which conv_sums.cu adds up.
 *
 * 2 places taps channels results operations. */
#include "product.cuh"

/* Knobs: TAPS_HIGH warpgroups; TAPS_WIDE taps of each, and how many places APART_HIGH, APART_WIDE
 * they are; TILE_HIGH and TILE_WIDE places; STAGES. */
#undef B_ALONG
#define B_ALONG PRODUCT_ALONG_MN

#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#include "conv_halo.cuh"

#define CHUNK 64 /* results and channels of a block */
#define BESIDE 8 /* places of half a step */
#define COLUMNS (TAPS_WIDE * CHUNK)
#define SUMS (COLUMNS / 2)
#define STEPS (TILE_HIGH * TILE_WIDE / (2 * BESIDE))
#define PITCH (TILE_WIDE + (TAPS_WIDE - 1) * APART_WIDE) /* lines from row to row of the image */
#define IMAGE_BYTES (PITCH * (TILE_HIGH + (TAPS_HIGH - 1) * APART_HIGH) * 128)
#define IMAGE_ROOM ((IMAGE_BYTES + 1023) / 1024 * 1024)
#define DY_BYTES (TILE_WIDE * TILE_HIGH * 128)
#define STAGE_BYTES (IMAGE_ROOM + (DY_BYTES + 1023) / 1024 * 1024)
#define THREADS (128 * (TAPS_HIGH + 1))
#define BRINGER_REGISTERS 40
#define CONSUMER_REGISTERS (TAPS_HIGH == 3 ? 152 : 208)

#if CUP_HAS_WGMMA

/* The tiles of a block, and the results and channels that it has. */
struct share {
    int first, end, part, result, channel;
};

DEVICE share share_of(const conv_halo_weight &v)
{
    unsigned rest = blockIdx.x;
    int channel = (int)split(&rest, v.chunks[1]), result = (int)split(&rest, v.chunks[0]);
    int part = (int)rest;
    return {part * v.part, min((part + 1) * v.part, v.units), part, result * CHUNK,
            channel * CHUNK};
}

/* The one thread that orders all copies. */
DEVICE void produce(const conv_halo_weight &v, const tensor_map &image, const tensor_map &dy,
                    uint32_t stages, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    share mine = share_of(v);
    for (int i = mine.first; i < mine.end; i++, place.next()) {
        unsigned rest = (unsigned)i;
        int column = (int)split(&rest, v.tiles[1]) * TILE_WIDE;
        int row = (int)split(&rest, v.tiles[0]) * TILE_HIGH, number = (int)rest;
        uint32_t to = stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
        pipe.claim(place, IMAGE_BYTES + DY_BYTES);
        tma_load<4>(image, to, {{mine.channel, column + v.from[1], row + v.from[0], number}}, full,
                    TMA_EVICT_NORMAL);
        tma_load<4>(dy, to + IMAGE_ROOM, {{mine.result, column, row, number}}, full,
                    TMA_EVICT_NORMAL);
    }
}

/* What the places of a tile add. */
DEVICE void multiply(float (&sum)[SUMS], uint64_t dy, uint64_t image, bool add)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int row = i / (TILE_WIDE / BESIDE) * 2, column = i % (TILE_WIDE / BESIDE) * BESIDE;
        wgmma<COLUMNS>::run<PRODUCT_ALONG_MN, PRODUCT_ALONG_MN>(
            sum, dy + (uint64_t)((row * TILE_WIDE + column) * (128 >> 4)),
            image + (uint64_t)((row * PITCH + column) * (128 >> 4)), add || i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(sum);
}

/* As wgmma_describe, where the lines of half a step and of the other half are `below` bytes apart,
 * and panels `beside` bytes. */
DEVICE uint64_t describe(uint32_t address, uint32_t beside, uint32_t below)
{
    return (uint64_t)1 << 62 | (uint64_t)(below >> 4) << 32 | (uint64_t)(beside >> 4) << 16 |
           (uint64_t)((address & 0x3ffff) >> 4);
}

/* The sums of a row of taps go to their part: by result, tap and channel. */
DEVICE void put_sums(const conv_halo_weight &v, const share &mine, int taps_row,
                     const float (&sum)[SUMS])
{
    const int thread = (int)threadIdx.x % 128, channels = (int)v.chunks[1].size * CHUNK;
    const int depth = TAPS_HIGH * TAPS_WIDE * channels;
    int result = mine.result + thread / 32 * 16 + thread % 32 / 4;
    float *to = v.sums + ((long long)mine.part * v.results + result) * depth +
                taps_row * TAPS_WIDE * channels + mine.channel + thread % 4 * 2;
#pragma unroll
    for (int down = 0; down < 2; down++, result += 8, to += 8 * depth)
        if (result < v.results)
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                *(float2 *)(to + j / 8 * channels + j % 8 * 8) =
                    make_float2(sum[4 * j + 2 * down], sum[4 * j + 2 * down + 1]);
}

DEVICE void consume(const conv_halo_weight &v, uint32_t stages, const ring<STAGES> &pipe)
{
    int group = __shfl_sync(0xffffffff, (int)threadIdx.x / 128 - 1, 0);
    uint64_t dy = describe(stages + IMAGE_ROOM, 128, TILE_WIDE * 128);
    uint64_t image = describe(stages + group * APART_HIGH * PITCH * 128, APART_WIDE * 128,
                              PITCH * 128);
    ring_place<STAGES> place = {0, 0};
    share mine = share_of(v);
    float sum[SUMS];
    for (int i = mine.first; i < mine.end; i++, place.next()) {
        uint64_t stage = (uint64_t)(place.stage * (STAGE_BYTES >> 4));
        pipe.wait_full(place);
        multiply(sum, dy + stage, image + stage, i > mine.first);
        pipe.release<1>(place.stage);
    }
    put_sums(v, mine, group, sum);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_halo_weight_sm90(const __grid_constant__ tensor_map image,
                          const __grid_constant__ tensor_map dy,
                          const __grid_constant__ conv_halo_weight v)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = shared_address(shared);
    ring<STAGES> pipe = {stages + STAGES * STAGE_BYTES};
    if (threadIdx.x == 0) {
        tma_prefetch_map(image);
        tma_prefetch_map(dy);
        pipe.init(4 * TAPS_HIGH);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<BRINGER_REGISTERS>();
        if (threadIdx.x < 32 && elected())
            produce(v, image, dy, stages, pipe);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume(v, stages, pipe);
    }
#endif
}
