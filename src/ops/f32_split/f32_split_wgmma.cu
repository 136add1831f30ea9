/* Products of f32 on Hopper's tensor cores: a and b lie in planes of 16-bit numbers
 * (f32_split.cu), and y = activation(a b + bias) is the sum of those products of planes that
 * matter.
 *
 * PLANES 1: one product; of f32 as it is, which the copies round to tf32, when both matrices lie
 * along k. 2, of f16: three; what is below the leading planes counts 2^-11. 3, of
 * bf16: six. A persistent grid; one warp copies by TMA, a stage holds 64 of k of all planes; two
 * warpgroups of 64 rows each multiply. Tensor cores cut off what falls below the last bit of a sum,
 * always towards zero, so the leading products of each stage are summed apart and added up outside,
 * while the others run. Where elements lost bits when they were cut, sums that could miss them ask
 * for the product of bf16 that comes next. k may be cut into parts. An element that is NaN at the
 * end is summed again from a and b themselves, as infinities in one plane meet zeros in another.
 * With CONV a or b is an image under the taps of a kernel (split_conv.cuh), each tensor has one
 * scale, and what is not finite is what the leading planes say.
 *
 * 2 m n k operations a product; a tile brings 128 PLANES (TILE_M + TILE_N) bytes for 64 of k. */
#define Y_T CUP_F32
#include "product.cuh"

/* Knobs: PLANES, TILE_N, STAGES, HAS_BIAS, HAS_PRE, PARTS. */
#ifndef BATCH /* dimensions, at most 1 */
#define BATCH 0
#endif
#ifndef Y_DIRECT /* y's rows do not start at multiples of 16 bytes */
#define Y_DIRECT 0
#endif
#ifndef HAS_PRE
#define HAS_PRE 0
#endif
#ifndef CONV
#define CONV 0
#endif
#ifndef K_STEPS /* of 64 of k, of which the rest is zero */
#define K_STEPS WGMMA_K_STEPS
#endif
#define PINGPONG 0
#define CONSUMERS 2
#define TILE_M 128

#include "pipe.cuh"
#include "split_call.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#include "wgmma_call.cuh"

#define TILE_K (CUP_T == CUP_F32 ? 32 : 64) /* 128 bytes */
#define PANEL (64 * 128)
#define ROWS (TILE_M / CONSUMERS)
#define BLOCKS_M 1
#define A_BYTES (TILE_M * 128)
#define B_BYTES (TILE_N * 128)
#define STAGE_BYTES (PLANES * (A_BYTES + B_BYTES))
#define THREADS (128 * (CONSUMERS + 1))
#define SUMS (TILE_N / 2)
#define STAGING_BYTES (CONSUMERS * 4 * 2 * 2048)
#define BIAS_BYTES (HAS_BIAS ? CONSUMERS * 2 * TILE_N * 4 : 0)
#define WHEN_WIDE (PLANES == 3)

typedef float result, bias_value;

#if CUP_HAS_WGMMA

#include "split_parts.cuh"
#include "split_sums.cuh"
#include "wgmma_finish.cuh"

DEVICE layout lay_out()
{
    extern __shared__ __align__(1024) char shared[];
    layout at;
    at.stages = shared_address(shared);
    at.other = 0;
    at.staging = at.stages + STAGES * STAGE_BYTES;
    at.bias = shared + STAGES * STAGE_BYTES + STAGING_BYTES;
    at.barriers = at.staging + STAGING_BYTES + BIAS_BYTES;
    return at;
}

/* A word for each warpgroup, and one more. */
DEVICE unsigned *last_of(const layout &at)
{
    return (unsigned *)(at.bias + BIAS_BYTES + 16 * STAGES);
}

/* Which tile, in groups of rows of tiles that are walked column by column. */
DEVICE unit unit_at(const wgmma_call &c, int index)
{
    unit u;
    u.part = 0;
    u.k = 0;
    u.k_tiles = c.k_tiles;
    if (PARTS) {
        u.part = index % c.parts;
        index /= c.parts;
        u.k = u.part * c.part_tiles;
        u.k_tiles = min(c.part_tiles, c.k_tiles - u.k);
    }
    u.tile = index;
    u.batch[0] = BATCH ? index / (c.tiles_m * c.tiles_n) : 0;
    u.batch[1] = 0;
#if CONV && BATCH /* whose matrices are the parts of k */
    u.k = u.batch[0] * c.part_tiles;
    u.k_tiles = min(c.part_tiles, c.k_tiles - u.k);
#endif
    index %= c.tiles_m * c.tiles_n;
    int strip = c.group * c.tiles_n, first = index / strip * c.group, inside = index % strip;
    int height = min(c.tiles_m - first, c.group);
    u.row = (first + inside % height) * TILE_M;
    u.column = inside / height * TILE_N;
    return u;
}

/* Copies one plane's part of a stage. */
template <int Along, int Lines>
DEVICE void bring(const tensor_map &map, uint32_t to, uint32_t full, int mn, int k, int matrix)
{
    if (Along == PRODUCT_ALONG_K) {
        box b = {{k, mn, matrix}};
        tma_load<3>(map, to, b, full, TMA_EVICT_NORMAL);
    } else {
#pragma unroll
        for (int i = 0; i < Lines / 64; i++) {
            box b = {{mn + 64 * i, k, matrix}};
            tma_load<3>(map, to + i * PANEL, b, full, TMA_EVICT_NORMAL);
        }
    }
}

#if CONV

#include "split_conv.cuh"

#else

DEVICE void produce(const wgmma_call &c, const split_product &s, const tensor_map &a,
                    const tensor_map &b, const layout &at, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int i = blockIdx.x; i < c.units; i += gridDim.x) {
        unit u = unit_at(c, i);
        for (int t = u.k; t < u.k + u.k_tiles; t++, place.next()) {
            pipe.claim(place, STAGE_BYTES);
            uint32_t stage = at.stages + place.stage * STAGE_BYTES, full = pipe.full(place.stage);
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) {
                bring<A_ALONG, TILE_M>(a, stage + plane * A_BYTES, full, u.row, t * TILE_K,
                                       plane * s.a_matrices + u.batch[0] * c.a_batch[0]);
                bring<B_ALONG, TILE_N>(b, stage + PLANES * A_BYTES + plane * B_BYTES, full,
                                       u.column, t * TILE_K,
                                       plane * s.b_matrices + u.batch[0] * c.b_batch[0]);
            }
        }
    }
}

#endif

/* Plane i of a times plane j of b, 64 of k. */
DEVICE void multiply(float (&sum)[SUMS], uint64_t a, uint64_t b, int i, int j, bool add)
{
    a += (uint64_t)(i * (A_BYTES >> 4));
    b += (uint64_t)(j * (B_BYTES >> 4));
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
        wgmma<TILE_N>::run<A_ALONG, B_ALONG>(sum, a + wgmma_step(A_ALONG, step),
                                             b + wgmma_step(B_ALONG, step), add || step > 0);
}

#if PLANES > 1
/* The products below the leading one, the smallest first. */
DEVICE void multiply_rest(float (&sum)[SUMS], uint64_t a, uint64_t b, bool add)
{
#if PLANES == 3
    multiply(sum, a, b, 2, 0, add);
    multiply(sum, a, b, 0, 2, true);
    multiply(sum, a, b, 1, 1, true);
    multiply(sum, a, b, 1, 0, true);
#else
    multiply(sum, a, b, 1, 0, add);
#endif
    multiply(sum, a, b, 0, 1, true);
}
#endif

DEVICE void main_loop(float (&sum)[SUMS], int k_tiles, uint64_t a, uint64_t b,
                      const ring<STAGES> &pipe, ring_place<STAGES> &place)
{
    int before = place.stage;
#if PLANES > 1
    float now[SUMS], rest[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[i] = 0;
#endif
#pragma unroll 1
    for (int t = 0; t < k_tiles; t++) {
        pipe.wait_full(place);
        uint64_t stage = (uint64_t)(place.stage * (STAGE_BYTES >> 4));
        wgmma_fence();
#if PLANES > 1
        multiply(now, a + stage, b + stage, 0, 0, false);
        wgmma_commit();
        multiply_rest(rest, a + stage, b + stage, t > 0);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(now);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[i] += now[i];
#else
        multiply(sum, a + stage, b + stage, 0, 0, t > 0);
        wgmma_commit();
        wgmma_wait<1>();
#endif
        if (t > 0)
            pipe.release<1>(before);
        before = place.stage;
        place.next();
    }
    wgmma_wait<0>();
#if PLANES > 1
    wgmma_hold(rest);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (!CONV || is_finite(sum[i]))
            sum[i] += rest[i] * (PLANES == 2 ? 0x1p-11f : 1.0f);
#else
    wgmma_hold(sum);
#endif
    pipe.release<1>(before);
}

DEVICE void consume(const wgmma_call &c, const split_product &s, const tensor_map &y,
                    const tensor_map &pre, const layout &at, const ring<STAGES> &pipe)
{
    crew w = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128, (int)threadIdx.x % 128 / 32};
    w.group = __shfl_sync(0xffffffff, w.group, 0);
    w.warp = __shfl_sync(0xffffffff, w.warp, 0);
    uint64_t a = wgmma_describe(at.stages + w.group * PANEL, A_ALONG, PANEL);
    uint64_t b = wgmma_describe(at.stages + PLANES * A_BYTES, B_ALONG, PANEL);
    ring_place<STAGES> place = {0, 0};
    int turn = 0, bias_turn = 0;
#if PLANES == 2
    unsigned small = ((volatile unsigned *)s.words)[SPLIT_SMALL];
#endif
    for (int index = blockIdx.x; index < c.units; index += gridDim.x) {
        unit u = unit_at(c, index);
        float *bias = (float *)at.bias + (w.group * 2 + bias_turn) * TILE_N;
        sums sum;
        main_loop(sum[0], u.k_tiles, a, b, pipe, place);
#if PLANES == 2
        if (small)
            doubt(s.words, small, u.k_tiles * TILE_K, sum[0]);
#endif
#if CONV
        if (PLANES == 2)
            unscale(s, sum[0]);
#else
        if (s.a_exponents)
            unscale(c, s, u, w, sum[0]);
        repair(c, s, u, w, sum[0]);
#endif
        if (HAS_BIAS) {
#pragma unroll
            for (int i = w.thread; i < TILE_N; i += 128)
                bias[i] = u.column + i < c.n ? __ldg((const float *)c.bias + u.column + i) : 0;
            meet(1 + w.group, 128);
            bias_turn ^= 1;
        }
        u.mine = ~0u;
        if (PARTS && c.parts > 1 && !add_parts(c, u, w, last_of(at), sum))
            continue;
        coder none = {0, 1};
        finish(c, y, pre, u, at, w, bias, none, &turn, sum);
    }
    if (lane() == 0)
        tma_store_wait<0>();
}

/* Whether this kernel is the one to run. The last block that looks, of the last kernel that does,
 * clears the words for the next product. A block of the first kernel must not see that another one
 * asks for a second: those that add up parts of k wait for all. */
DEVICE bool is_wanted(const split_product &s, unsigned *word)
{
    if (!s.words)
        return true;
    if (threadIdx.x == 0) {
        const volatile unsigned *words = s.words;
        *word = words[SPLIT_WIDE] | (WHEN_WIDE ? words[SPLIT_AGAIN] : 0);
        __threadfence();
        if (!CONV && WHEN_WIDE && atomicAdd(s.words + SPLIT_LOOKS, 1u) == gridDim.x - 1)
            for (int i = 0; i < SPLIT_WORDS; i++)
                s.words[i] = 0;
    }
    __syncthreads();
    return (*word != 0) == WHEN_WIDE;
}


DEVICE void work(const tensor_map &a, const tensor_map &b, const tensor_map &y,
                 const tensor_map &pre, const wgmma_call &c, const split_product &s)
{
    layout at = lay_out();
    if (at.stages % 1024)
        __trap();
    ring<STAGES> pipe = {at.barriers};
    if (threadIdx.x == 0) {
        tma_prefetch_map(a);
        tma_prefetch_map(b);
        pipe.init(4 * CONSUMERS);
    }
    __syncthreads();
    wait_for_previous_kernel();
    if (!is_wanted(s, last_of(at) + CONSUMERS))
        return;
    if (threadIdx.x < 128) {
        registers_give<CONV ? 40 : 24>();
        if (threadIdx.x < 32 && elected()) {
#if CONV == WGMMA_CONV_ROWS
            produce_rows((const wgmma_conv &)c, s, a, b, at, pipe);
#elif CONV
            produce_depth((const wgmma_conv &)c, s, a, b, at, pipe);
#else
            produce(c, s, a, b, at, pipe);
#endif
        }
        __syncwarp();
    } else {
        registers_take<CONV ? 232 : 240>();
        consume(c, s, y, pre, at, pipe);
    }
}

#endif

#if CONV

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_split_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                    const __grid_constant__ tensor_map y, const __grid_constant__ wgmma_conv v,
                    const __grid_constant__ split_product s)
{
#if CUP_HAS_WGMMA
    work(a, b, y, y, v.all, s);
#endif
}

#else

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_split_sm90(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                      const __grid_constant__ tensor_map y, const __grid_constant__ tensor_map pre,
                      const __grid_constant__ wgmma_call c, const __grid_constant__ split_product s)
{
#if CUP_HAS_WGMMA
    work(a, b, y, pre, c, s);
#endif
}

#endif
