/* Products of up to 64 rows of 16 bits on Hopper, as when texts are written side by side:
 * y = activation(a b + bias), where what is multiplied lies along k.
 *
 * A cluster has TILE_N columns of y and each of its PARTS blocks TILES times 64 of k, all of which
 * finds room in its shared memory at once: there is no ring, and the weights are ordered before the
 * kernel in front is done, where that one does not write them. One warpgroup multiplies. Each
 * block then sends the others the sums of the rows that they finish, and adds up those of its own
 * in the order of the parts, so that the bits stay the same.
 *
 * 2 m n k operations; a block brings 128 (64 + TILE_N) TILES bytes and sends 256 TILE_N. */
#include "resident_call.cuh"
#include "product.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

/* Knobs: TILE_N (16, 32, ...), PARTS (2, 4 or 8), TILES, ACTIVATION, HAS_BIAS, HAS_PRE. */
#define THREADS 128
#define TILE_K 64
#define A_BYTES (64 * 128)
#define STAGE_BYTES (A_BYTES + TILE_N * 128)
#define VECTORS (16 * TILE_N / PARTS) /* of four sums that a block finishes */
#define EACH ((VECTORS + THREADS - 1) / THREADS)
#define WARPS_OWN (PARTS < 4 ? 4 / PARTS : 1) /* of which a block finishes rows */
#define INBOX_BYTES (PARTS * VECTORS * 16)

#if CUP_HAS_WGMMA

typedef float sums[TILE_N / 2];

struct layout {
    uint32_t stages, inbox, full, joined;
};

DEVICE layout lay_out()
{
    extern __shared__ __align__(1024) char shared[];
    layout at;
    at.stages = shared_address(shared);
    at.inbox = at.stages + TILES * STAGE_BYTES;
    at.joined = at.inbox + INBOX_BYTES;
    at.full = at.joined + 8;
    return at;
}

/* What of k the block has. */
struct share {
    int first, tiles, column;
};

DEVICE void bring(const tensor_map &map, const layout &at, const share &s, int line, int beyond)
{
    for (int t = 0; t < s.tiles; t++)
        tma_load<2>(map, at.stages + t * STAGE_BYTES + beyond, {{(s.first + t) * TILE_K, line}},
                    at.full + 8 * t, TMA_EVICT_NORMAL);
}

/* All products of the block's part of k. */
DEVICE void multiply(const layout &at, const share &s, sums &sum)
{
    uint64_t a = wgmma_describe(at.stages, PRODUCT_ALONG_K, 0);
    uint64_t b = wgmma_describe(at.stages + A_BYTES, PRODUCT_ALONG_K, 0);
#pragma unroll 1
    for (int t = 0; t < s.tiles; t++) {
        uint64_t stage = (uint64_t)(t * (STAGE_BYTES >> 4));
        barrier_wait(at.full + 8 * t, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < WGMMA_K_STEPS; i++)
            wgmma<TILE_N>::run<PRODUCT_ALONG_K, PRODUCT_ALONG_K>(
                sum, a + stage + wgmma_step(PRODUCT_ALONG_K, i),
                b + stage + wgmma_step(PRODUCT_ALONG_K, i), t > 0 || i > 0);
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
}

/* Where vector i of those that a block finishes lies, of part `from`. */
DEVICE uint32_t vector_at(const layout &at, int from, int i)
{
    return at.inbox + (from * VECTORS + i) * 16;
}

/* Four neighbours: of 8 columns two in a row and two 8 rows below, which the same block finishes;
 * with 8 parts these are another's, and a vector has two of the next 8 columns instead. */
DEVICE void send(const layout &at, int part, const sums &sum)
{
    const int warp = threadIdx.x / 32;
    if (PARTS < 8) {
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j++)
            send16(vector_at(at, part, (j * WARPS_OWN + warp % WARPS_OWN) * 32 + lane()),
                   at.joined, warp / WARPS_OWN, sum + 4 * j);
        return;
    }
#pragma unroll
    for (int j = 0; j < TILE_N / 8; j++) {
        int half = j % 2, from = j / 2 * 8 + 2 * half;
        const float four[4] = {sum[from], sum[from + 1], sum[from + 4], sum[from + 5]};
        send16(vector_at(at, part, j / 2 * 32 + lane()), at.joined, 2 * warp + half, four);
    }
}

/* The first row and column of a vector, and how far its second half is from there. */
struct place {
    int row, column, down, right;
};

DEVICE place place_of(const share &s, int part, int i)
{
    place p;
    int number = i / 32, of = i % 32;
    if (PARTS < 8) {
        p.row = 16 * (part * WARPS_OWN + number % WARPS_OWN) + of / 4;
        p.column = s.column + 8 * (number / WARPS_OWN) + of % 4 * 2;
        p.down = 8;
        p.right = 0;
    } else {
        p.row = 8 * part + of / 4;
        p.column = s.column + 16 * number + of % 4 * 2;
        p.down = 0;
        p.right = 8;
    }
    return p;
}

DEVICE float2 bias_at(const resident_call &c, int column)
{
    float two[2] = {0, 0};
    if (HAS_BIAS && column < c.n)
        to_reals(load<2>((const T *)c.bias + column), two);
    return make_float2(two[0], two[1]);
}

DEVICE void put(const resident_call &c, int row, int column, float left, float right, float2 bias)
{
    if (row >= c.m || column >= c.n)
        return;
    left += bias.x;
    right += bias.y;
    if (HAS_PRE)
        *(uint32_t *)((T *)c.pre + row * c.y_row + column) = pack(left, right, T());
    *(uint32_t *)((T *)c.y + row * c.y_row + column) = pack(activated(left), activated(right), T());
}

/* Adds up vector i of all parts. */
DEVICE float4 joined(const layout &at, int i)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int from = 0; from < PARTS; from++) {
        float4 v;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(vector_at(at, from, i))
                     : "memory");
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
    }
    return sum;
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_resident(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
               const __grid_constant__ resident_call c)
{
#if CUP_HAS_WGMMA
    const layout at = lay_out();
    const int part = cluster_rank();
    share s = {part * TILES, 0, (int)blockIdx.x / PARTS * TILE_N};
    s.tiles = min(TILES, c.k_tiles - s.first);
    if (threadIdx.x == 0) {
        tma_prefetch_map(a);
        tma_prefetch_map(b);
        barrier_init(at.joined, 1);
        for (int t = 0; t < s.tiles; t++)
            barrier_init(at.full + 8 * t, 1);
        barrier_init_done();
        barrier_expect(at.joined, INBOX_BYTES);
        for (int t = 0; t < s.tiles; t++)
            barrier_expect(at.full + 8 * t, STAGE_BYTES);
    }
    if (!c.ahead)
        wait_for_previous_kernel();
    if (threadIdx.x == 0)
        bring(b, at, s, s.column, A_BYTES);
    place p[EACH];
    float2 bias[EACH][2];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        p[e] = place_of(s, part, threadIdx.x + e * THREADS);
        bias[e][0] = bias_at(c, p[e].column);
        bias[e][1] = p[e].right ? bias_at(c, p[e].column + p[e].right) : bias[e][0];
    }
    cluster_gather();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x == 0)
        bring(a, at, s, 0, 0);
    sums sum;
    multiply(at, s, sum);
    send(at, part, sum);
    barrier_wait(at.joined, 0);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int i = threadIdx.x + e * THREADS;
        if (i >= VECTORS)
            continue;
        float4 v = joined(at, i);
        put(c, p[e].row, p[e].column, v.x, v.y, bias[e][0]);
        put(c, p[e].row + p[e].down, p[e].column + p[e].right, v.z, v.w, bias[e][1]);
    }
#endif
}
