/* The gradient of conv2d's weight on Hopper for kernels of nine taps: dw = dy x under each tap,
 * summed over places, 16-bit elements with sums in f32.
 *
 * A tile has TILE_M results and 32 channels of the image under all taps, 288 columns. What a block
 * has of a result are then neighbours in the weight, which is written as it lies, without a pass
 * that turns it. One warp orders copies by TMA into a ring of STAGES tiles of 64 places: dy, and
 * the image under each tap, in lines of 64 bytes; two warpgroups multiply, 64 results each, by two
 * products of five and of four taps. The places may be cut into equal parts, whose blocks hand each
 * other pieces of 8 rows by 8 channels of each warp through memory, or all steps of all tiles into
 * an equal share for each block, where who has a tile's beginning adds the rest. Both add in one
 * order, so that the bits stay the same.
 *
 * 2 * 288 TILE_M operations a place; a tile brings 2 (TILE_M + 288) bytes for each. */
#include "hopper.cuh"
#include "pipe.cuh"
#include "tma.cuh"
#include "vec.cuh"
#include "wgmma.cuh"
#include "wgmma_call.cuh"

#ifndef PARTS /* whether the places are cut: into equal parts, or into a share for each block */
#define PARTS 0
#endif
#define SHARES (PARTS == 2)
#ifndef BASE /* whether sums are added to `other`, which lies as y does and may be y */
#define BASE 0
#endif

#define TAPS 9
#define FIRST_TAPS 5 /* of the first product, */
#define LAST_TAPS 4  /* and of the second */
#define CHANNELS 32
#define TILE_M 128
#define TILE_K 64
#define STAGES 4
#define A_PANEL (TILE_K * 128) /* bytes of 64 results */
#define B_PANEL (TILE_K * 64)  /* and of the channels under a tap */
#define A_BYTES (2 * A_PANEL)
#define STAGE_BYTES (A_BYTES + TAPS * B_PANEL)
#define CONSUMERS 2
#define BRINGER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#define CONSUMER_WARPS (4 * CONSUMERS)
#define THREADS (128 * (CONSUMERS + 1))
#define PIECES 8             /* of a warp's sums: 8 channels each, of the upper or lower 8 rows; */
#define PIECE (2 * TAPS)     /* two channels of a row in each thread, */
#define ROW_BYTES (16 * TAPS) /* and so much of a row of the weight */
#define PIECE_BYTES (8 * ROW_BYTES)
#define STAGING_BYTES (CONSUMER_WARPS * 2 * PIECE_BYTES)

#if CUP_HAS_WGMMA

#include "conv_weight_taps.cuh"

/* What the first tap of place number `index` of all images reads; beyond the last one an image that
 * is not there. */
DEVICE box place_of(const wgmma_conv &v, int channel, int index)
{
    unsigned rest = (unsigned)index;
    int column = (int)split(&rest, v.places[1]), row = (int)split(&rest, v.places[0]);
    return {{channel, v.from[1] + column * v.step[1], v.from[0] + row * v.step[0], (int)rest}};
}

/* The one thread that orders all copies. */
DEVICE void produce(const wgmma_conv &v, const tensor_map &dy, const tensor_map &image,
                    uint32_t stages, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    unit u;
    for (walk here(v); here.next(v, u);) {
        for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t to = stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
#pragma unroll
            for (int j = 0; j < A_BYTES; j += A_PANEL)
                tma_load<2>(dy, to + j, {{u.row + j / 128, t * TILE_K, 0, 0}}, full,
                            TMA_EVICT_NORMAL);
            box at = place_of(v, u.channel, t * TILE_K);
            to += A_BYTES;
            int column = 0, right = 0, down = 0;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                tma_load_places(image, to + tap * B_PANEL, at, right, down, full,
                                TMA_EVICT_NORMAL);
                right += v.tap_step[1];
                if (++column == v.taps_wide) {
                    column = right = 0;
                    down += v.tap_step[0];
                }
            }
        }
    }
}

/* The image in panels of 32 channels by 64 places, swizzled over 64 bytes (see wgmma.cuh). */
DEVICE uint64_t describe_image(uint32_t address)
{
    return (uint64_t)2 << 62 | (uint64_t)(8 * 64 >> 4) << 32 | (uint64_t)(B_PANEL >> 4) << 16 |
           (uint64_t)((address & 0x3ffff) >> 4);
}

/* Places of a stage, 16 at a time. */
DEVICE void multiply(sums &s, uint64_t a, uint64_t b, bool add)
{
    const int along = PRODUCT_ALONG_MN;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++) {
        uint64_t left = a + wgmma_step(along, i), right = b + (16 * 64 * i >> 4);
        wgmma<FIRST_TAPS * CHANNELS>::run<along, along>(s.first, left, right, add || i > 0);
        wgmma<LAST_TAPS * CHANNELS>::run<along, along>(
            s.last, left, right + (FIRST_TAPS * B_PANEL >> 4), add || i > 0);
    }
    wgmma_commit();
}

/* A unit's places; one group of products stays under way while the next stage is waited for. */
DEVICE void add_places(sums &s, uint64_t a, uint64_t b, int k_tiles, const ring<STAGES> &pipe,
                       ring_place<STAGES> &place)
{
    int before = place.stage;
#pragma unroll 1
    for (int t = 0; t < k_tiles; t++) {
        pipe.wait_full(place);
        uint64_t stage = (uint64_t)(place.stage * (STAGE_BYTES >> 4));
        multiply(s, a + stage, b + stage, t > 0);
        wgmma_wait<1>();
        if (t > 0)
            pipe.release<1>(before);
        before = place.stage;
        place.next();
    }
    wgmma_wait<0>();
    wgmma_hold(s.first);
    wgmma_hold(s.last);
    pipe.release<1>(before);
}

/* Adds what is at this thread's share of a row of the weight already. */
DEVICE void add_base(const T *from, float (&own)[PIECE])
{
#pragma unroll
    for (int i = 0; i < PIECE; i += 2) {
        float two[2];
        to_reals(*(const vec<T, 2> *)(from + i), two);
        own[i] += two[0];
        own[i + 1] += two[1];
    }
}

/* Takes a piece to y through shared memory: rows of 144 bytes. */
DEVICE void put_piece(const wgmma_conv &v, const unit &u, const crew &w, int piece,
                      float (&own)[PIECE], char *staging)
{
    int row = u.row + 64 * w.group + 16 * w.warp + 8 * (piece % 2);
    long long at = row * v.all.y_row + (u.channel + piece / 2 * 8) * TAPS;
    const int mine = lane() / 4;
    if (BASE && row + mine < v.all.m)
        add_base((const T *)v.all.other + at + mine * v.all.y_row + lane() % 4 * PIECE, own);
    uint32_t *to = (uint32_t *)(staging + mine * ROW_BYTES + lane() % 4 * 2 * PIECE);
#pragma unroll
    for (int i = 0; i < PIECE; i += 2)
        to[i / 2] = pack(own[i], own[i + 1], T());
    __syncwarp();
    const int vectors = ROW_BYTES / 16;
#pragma unroll
    for (int i = lane(); i < 8 * vectors; i += 32)
        if (row + i / vectors < v.all.m) {
            char *y = (char *)((T *)v.all.y + at + i / vectors * v.all.y_row);
            *(uint4 *)(y + i % vectors * 16) = *(const uint4 *)(staging + 16 * i);
        }
}

DEVICE void consume(const wgmma_conv &v, uint32_t stages, char *staging, const ring<STAGES> &pipe)
{
    crew w = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128, (int)threadIdx.x % 128 / 32};
    w.group = __shfl_sync(0xffffffff, w.group, 0);
    w.warp = __shfl_sync(0xffffffff, w.warp, 0);
    staging += (w.group * 4 + w.warp) * 2 * PIECE_BYTES;
    uint64_t a = wgmma_describe(stages + w.group * A_PANEL, PRODUCT_ALONG_MN, A_PANEL);
    uint64_t b = describe_image(stages + A_BYTES);
    ring_place<STAGES> place = {0, 0};
    int turn = 0; /* of the two buffers, of which one is written while the other is read */
    unit u;
    for (walk here(v); here.next(v, u);) {
        sums s;
        add_places(s, a, b, u.k_tiles, pipe, place);
        if (PARTS && is_shared(u))
            hand_over(v, u, w, s);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            if (PARTS && !(u.mine >> piece & 1))
                continue;
            float own[PIECE];
            take_piece(s, piece, own);
            if (PARTS)
                add_others(v, u, w, piece, own);
            put_piece(v, u, w, piece, own, staging + turn * PIECE_BYTES);
            turn ^= 1;
        }
        if (PARTS && is_shared(u))
            depart(v, u, w);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_weight_taps(const __grid_constant__ tensor_map dy,
                     const __grid_constant__ tensor_map image,
                     const __grid_constant__ wgmma_conv v)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = shared_address(shared);
    char *staging = shared + STAGES * STAGE_BYTES;
    ring<STAGES> pipe = {stages + STAGES * STAGE_BYTES + STAGING_BYTES};
    if (stages % 1024)
        __trap();
    if (threadIdx.x == 0) {
        tma_prefetch_map(dy);
        tma_prefetch_map(image);
        pipe.init(CONSUMER_WARPS);
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x < 128) {
        registers_give<BRINGER_REGISTERS>();
        if (threadIdx.x < 32 && elected())
            produce(v, dy, image, stages, pipe);
        __syncwarp();
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume(v, stages, staging, pipe);
    }
#endif
}
