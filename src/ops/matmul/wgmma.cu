/* Matrix products on Hopper: y = activation(a b + bias), 16-bit elements with sums in f32, or
 * scaled codes of 8 bits (wgmma_scale.cuh), those of integers with exact sums.
 *
 * A persistent grid, one block an SM. One warp orders copies by TMA into a ring of STAGES tiles,
 * 128 bytes along k, of TILE_M rows of a and TILE_N columns of b; CONSUMERS warpgroups multiply
 * out of shared memory into registers. Cooperative: they share a tile, TILE_M / CONSUMERS rows
 * each. PINGPONG: they take tiles in turn, and while one multiplies the other finishes its tile.
 * Blocks of a cluster lie side by side along m (or n); each copies its share of the common b (or a)
 * into both. Results go through swizzled shared memory and TMA, 16 rows a warp. k may be cut into
 * parts: each block of a tile hands its sums to the others, through memory or in a cluster, and
 * adds up a share of the tile, in the order of the parts, so that the bits stay the same.
 *
 * 2 m n k operations; a tile brings 128 (TILE_M + TILE_N) bytes for each 128 bytes along k. */
#include "product.cuh"

#ifndef Y_T
#define Y_T CUP_T
#endif
/* Knobs: TILE_M, TILE_N, CONSUMERS, PINGPONG, STAGES, GROUPS. */
#ifndef CLUSTER_M
#define CLUSTER_M 1
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#ifndef BATCH /* dimensions, at most 2 */
#define BATCH 0
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_PRE
#define HAS_PRE 0
#endif
#ifndef PARTS /* whether k is cut */
#define PARTS 0
#endif
#ifndef CLUSTER_K /* blocks of a cluster that have the parts of a tile; 1: parts meet in memory */
#define CLUSTER_K 1
#endif
#ifndef SCALES
#define SCALES PRODUCT_SCALE_NONE
#endif
#ifndef PROMOTE /* whether the sums of each k-tile are added up outside of the tensor cores */
#define PROMOTE 0
#endif
#ifndef SUM_A /* whether the sums of a's lines along k are wanted */
#define SUM_A 0
#endif
#ifndef CONV /* whether a or b is an image under the taps of a kernel */
#define CONV 0
#endif
#ifndef BESIDE /* whether it runs beside the kernel before it, which writes other elements of y */
#define BESIDE 0
#endif
#ifndef K_STEPS /* of a line, of which the rest is zero */
#define K_STEPS WGMMA_K_STEPS
#endif
#ifndef Y_DIRECT /* y's rows do not start at multiples of 16 bytes */
#define Y_DIRECT 0
#endif

#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#include "wgmma_call.cuh"

#define TILE_K (128 / (int)sizeof(T))
#define PANEL (64 * 128) /* bytes of 64 lines of 128 */
#define CLUSTER (CLUSTER_M * CLUSTER_N)
#define ROWS (PINGPONG ? TILE_M : TILE_M / CONSUMERS) /* of a tile that a warpgroup owns */
#define BLOCKS_M (ROWS / 64)
#define A_BYTES (TILE_M * 128)
/* Panels along n are 64 wide. */
#define B_LINES (B_ALONG == PRODUCT_ALONG_K ? TILE_N : (TILE_N + 63) / 64 * 64)
#define B_BYTES (B_LINES * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define CONSUMER_WARPS (PINGPONG ? 4 : 4 * CONSUMERS) /* that use one stage */
#define THREADS (128 * (CONSUMERS + 1))
#define SUMS (TILE_N / 2) /* registers for 64 rows */
/* Registers of the threads that bring and of those that multiply, as the block's size leaves. */
#define BRINGS_MORE (SUM_A || PROMOTE || CONV)
#define BRINGER_REGISTERS                                                                          \
    (CONSUMERS == 3 ? (BRINGS_MORE ? 48 : 32) : BRINGS_MORE ? 40 : 24)
#define CONSUMER_REGISTERS ((CONSUMERS == 3 ? 160 : 240) - (BRINGS_MORE ? 8 : 0))
#define STORE16 (PROMOTE && !GROUPS)
#define STAGING_BYTES (CONSUMERS * 4 * STAGING_BUFFERS * STAGE_PIECE)
#define BIAS_BYTES (HAS_BIAS ? CONSUMERS * TILE_N * 4 : 0)
#define SCALE_BYTES                                                                                \
    (SCALES == PRODUCT_SCALE_BLOCKS  ? STAGES * SCALE_FLOATS * 4                                   \
     : SCALES == PRODUCT_SCALE_LINES ? CONSUMERS * TILE_N * 4                                      \
                                     : 0)

typedef dtype_of<Y_T>::type result;
#if Y_T == CUP_F8E4M3 || Y_T == CUP_F8E5M2
typedef T bias_value;
#elif defined(BIAS_T)
typedef dtype_of<BIAS_T>::type bias_value;
#else
typedef result bias_value;
#endif

#if CUP_HAS_WGMMA

#include "wgmma_conv.cuh"
#include "wgmma_finish.cuh"
#include "wgmma_groups.cuh"
#include "wgmma_load.cuh"
#include "wgmma_scale.cuh"
#include "wgmma_sums.cuh"

DEVICE layout lay_out()
{
    extern __shared__ __align__(1024) char shared[];
    layout at;
    at.stages = shared_address(shared);
    at.other = at.stages + STAGES * STAGE_BYTES;
    at.staging = at.other + OTHER_BUFFERS * OTHER_BYTES;
    at.bias = shared + (at.staging - at.stages) + STAGING_BYTES;
    at.scales = at.bias + BIAS_BYTES;
    at.barriers = at.staging + STAGING_BYTES + BIAS_BYTES + SCALE_BYTES;
    return at;
}

/* The warp that orders the copies of scales. */
DEVICE void produce_scales(const wgmma_call &c, const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x / CLUSTER; i < units_of(c); i += gridDim.x / CLUSTER)
        bring_scales(c, unit_at(c, i), at, pipe, place);
}

#define ORDER 4 /* numbers of the barriers that hand the tensor cores on */

/* One k-tile, for all rows that the warpgroup owns. */
DEVICE void multiply(products &sum, uint64_t a, uint64_t b, bool add)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++) {
            uint64_t down = (uint64_t)((A_ALONG == PRODUCT_ALONG_K ? 64 * 128 : PANEL) >> 4) * m;
            wgmma<TILE_N>::run<A_ALONG, B_ALONG>(sum[m], a + down + wgmma_step(A_ALONG, i),
                                                 b + wgmma_step(B_ALONG, i), add || i > 0);
        }
    wgmma_commit();
}

/* A unit's k. One group of products stays under way while the next stage is waited for; when it is
 * done its stage is let go. Gives the stage of the last group, which stays under way. */
DEVICE int add_tiles(products &sum, uint64_t a, uint64_t b, const ring<STAGES> &pipe,
                     ring_place<STAGES> &place, const unit &u, const layout &at, const crew &w)
{
    int before = place.stage;
#pragma unroll 1
    for (int t = 0; t < u.k_tiles; t++) {
        pipe.wait_full(place);
        uint64_t stage = (uint64_t)(place.stage * (STAGE_BYTES >> 4));
        if (GROUPS == PRODUCT_GROUPS_OF_DEPTH && t == u.k_tiles - 1 && u.depth < TILE_K) {
            uint32_t there = at.stages + place.stage * STAGE_BYTES;
            clear_tail(there + (PINGPONG ? 0 : w.group * BLOCKS_M * PANEL), there + A_BYTES,
                       u.depth, w);
        }
        multiply(sum, a + stage, b + stage, t > 0);
        wgmma_wait<1>();
        if (t > 0)
            pipe.release<CLUSTER>(before);
        before = place.stage;
        place.next();
    }
    return before;
}

/* Waits for the last group. */
DEVICE void end_tiles(products &sum, const ring<STAGES> &pipe, int last)
{
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
        wgmma_hold(sum[m]);
    pipe.release<CLUSTER>(last);
}

#define AHEAD (!PARTS) /* a warpgroup looks for its next unit while products are under way */

/* Where a warpgroup is in the block's units. */
struct walk {
    int index, number; /* of all units, and of those of this block */
    ring_place<STAGES> place;
};

/* Goes on to the next unit that is this warpgroup's; false behind the last one. */
DEVICE bool find_unit(const wgmma_call &c, const crew &w, walk &at, unit &u)
{
    for (; at.index < units_of(c); at.index += gridDim.x / CLUSTER, at.number++) {
        u = unit_at(c, at.index);
        if (!PINGPONG || (at.number & 1) == w.group)
            return true;
        at.place.skip(u.k_tiles);
    }
    return false;
}

DEVICE void consume(const wgmma_call &c, const tensor_map &y, const tensor_map &pre,
                    const layout &at, const ring<STAGES> &pipe)
{
    crew w = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128, (int)threadIdx.x % 128 / 32};
    w.group = __shfl_sync(0xffffffff, w.group, 0);
    w.warp = __shfl_sync(0xffffffff, w.warp, 0);
    uint32_t rows = PINGPONG ? 0 : w.group * (ROWS / 64) * PANEL;
    uint64_t a = wgmma_describe(at.stages + rows, A_ALONG, PANEL);
    uint64_t b = wgmma_describe(at.stages + A_BYTES, B_ALONG, PANEL);
    walk here = {(int)blockIdx.x / CLUSTER, 0, {0, 0}};
    int turn = 0;
    coder code = {0, CODES ? __fdiv_rn(1.0f, __ldg(c.y_scale)) : 1.0f};
    if (PINGPONG && w.group == 1)
        pass(ORDER, 256);
    unit next;
    for (bool more = find_unit(c, w, here, next); more;) {
        unit u = next;
        const int number = here.number;
        float *bias = (float *)at.bias + w.group * TILE_N;
        bias_pair two = {};
        if (HAS_BIAS && 2 * w.thread < TILE_N)
            two = load_bias(c, u.column, 2 * w.thread);
        line_scales scales = {};
        if (SCALES == PRODUCT_SCALE_LINES)
            scales = take_scales(c, u, w);
        products sum;
        if (PINGPONG)
            meet(ORDER + w.group, 256);
#if PROMOTE
        add_blocks((sums &)sum, u, a, b, at, w, pipe, here.place);
#else
        int last = add_tiles(sum, a, b, pipe, here.place, u, at, w);
#endif
        if (PINGPONG) /* the other's products wait behind the last ones of these */
            pass(ORDER + 1 - w.group, 256);
        here.index += gridDim.x / CLUSTER;
        here.number++;
        if (AHEAD)
            more = find_unit(c, w, here, next);
#if !PROMOTE
        end_tiles(sum, pipe, last);
#endif
        if (HAS_BIAS) {
            if (!PINGPONG) /* where warps meet before they multiply */
                meet(1 + w.group, 128);
            if (2 * w.thread < TILE_N)
                keep_bias(bias + 2 * w.thread, two);
            meet(1 + w.group, 128);
        }
        if (PARTS) {
            u.mine = chunks_of(c, u.part);
            if (CLUSTER_K > 1)
                join_cluster(u, at, w, (sums &)sum);
            else
                join_parts(c, u, w, (sums &)sum);
        }
        apply_scales(c, u, w, at, scales, sum);
        if (OTHER)
            barrier_wait(other_full(at, number), number >> 1 & 1);
        layout mine = at;
        mine.other = other_at(at, number);
        finish(c, (&y)[u.item], pre, u, mine, w, bias, code, &turn, (const sums &)sum);
        if (OTHER) {
            __syncwarp();
            if (lane() == 0)
                barrier_arrive(other_empty(at, number));
        }
        if (!AHEAD)
            more = find_unit(c, w, here, next);
    }
    if (CODES)
        code.tell(c);
    if (lane() == 0)
        tma_store_wait<0>();
}

/* What the block does, all of it. */
DEVICE void work(const wgmma_call &c, const tensor_map &a, const tensor_map &b, const tensor_map &y,
                 const tensor_map &pre)
{
    layout at = lay_out();
    if (at.stages % 1024)
        __trap();
    ring<STAGES> pipe = {at.barriers};
    if (threadIdx.x == 0) {
        if (OTHER) {
            barrier_init(other_full(at, 0), 1);
            barrier_init(other_full(at, 1), 1);
            for (int i = 0; i < OTHER_BUFFERS; i++)
                barrier_init(other_empty(at, i), CONSUMER_WARPS);
        }
        tma_prefetch_map(a);
        tma_prefetch_map(b);
        if (!Y_DIRECT)
            tma_prefetch_map(y);
        if ((HAS_PRE || OTHER) && !Y_DIRECT)
            tma_prefetch_map(pre);
        if (CLUSTER_K > 1) {
            barrier_init(join_full(at), 1);
            barrier_expect(join_full(at), join_bytes(cluster_rank()));
        }
        pipe.init(CONSUMER_WARPS * CLUSTER + (SUM_A ? SUM_WARPS : 0),
                  SCALES == PRODUCT_SCALE_BLOCKS ? 33 : 1);
    }
    if (CLUSTER > 1 || CLUSTER_K > 1)
        cluster_gather();
    else
        __syncthreads();
    if (!BESIDE)
        wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x < 128) {
        if (CONSUMERS > 1)
            registers_give<BRINGER_REGISTERS>();
        if (CONV == WGMMA_CONV_ROWS && threadIdx.x < 32 && elected())
            produce_rows((const wgmma_conv &)c, a, b, at, pipe);
        else if (CONV == WGMMA_CONV_DEPTH && threadIdx.x < 32 && elected())
            produce_depth((const wgmma_conv &)c, a, b, at, pipe);
        else if (!CONV && threadIdx.x < 32 && elected())
            produce(c, a, b, at, pipe);
        else if (SCALES == PRODUCT_SCALE_BLOCKS && threadIdx.x / 32 == 1)
            produce_scales(c, at, pipe);
        else if (OTHER && threadIdx.x / 32 == 1 && elected())
            produce_other(c, pre, at);
        else if (SUM_A && threadIdx.x / 32 > 0 && threadIdx.x / 32 <= SUM_WARPS)
            sum_lines(c, at, pipe, threadIdx.x / 32 - 1);
        __syncwarp();
        if (CLUSTER_K > 1)
            cluster_gather(); /* as join_cluster does */
    } else {
        if (CONSUMERS > 1)
            registers_take<CONSUMER_REGISTERS>();
        consume(c, y, pre, at, pipe);
    }
    if (CLUSTER > 1)
        cluster_gather();
    if (BESIDE) /* so that who waits for this kernel waits for both */
        wait_for_previous_kernel();
}

#endif

#if LIST

struct list_maps {
    tensor_map a[WGMMA_LIST], b[WGMMA_LIST], y[WGMMA_LIST];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_sm90_list(const __grid_constant__ list_maps maps, const __grid_constant__ wgmma_list l)
{
#if CUP_HAS_WGMMA
    work(l.all, maps.a[0], maps.b[0], maps.y[0], maps.a[0]);
#endif
}

#elif CONV

#if !OTHER

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
              const __grid_constant__ tensor_map y, const __grid_constant__ wgmma_conv v)
{
#if CUP_HAS_WGMMA
    work(v.all, a, b, y, y);
#endif
}

#else

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
              const __grid_constant__ tensor_map y, const __grid_constant__ wgmma_conv v,
              const __grid_constant__ tensor_map residual)
{
#if CUP_HAS_WGMMA
    work(v.all, a, b, y, residual);
#endif
}

#endif

#else

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                const __grid_constant__ tensor_map y, const __grid_constant__ tensor_map pre,
                const __grid_constant__ wgmma_call c)
{
#if CUP_HAS_WGMMA
    work(c, a, b, y, pre);
#endif
}

#endif
