/* Products of f32 by the tensor cores of Ampere and later: y = activation(a b + bias), any sizes
 * and alignment. TERMS 1: what is multiplied is rounded to tf32. 3: each number is the sum of two
 * of tf32, and three of their four products count, which leaves no larger error than f32 has.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y, y the matrices of a batch; mma_tile.cuh says what a
 * block does. Tensor cores cut sums off towards zero: with three terms the products of the leading
 * parts are added up outside for each tile of k. An element that is NaN then is summed again
 * without tensor cores, as infinities have met zeros. */
/* Knobs: CUP_T, TERMS, TILE_M, TILE_N, STAGES, A_VEC, B_VEC. */
#include "product.cuh"

#define DEPTH 32
#define ELEMENT float

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

#include "mma_tile.cuh"

/* The leading parts of four numbers, and what is left. */
struct parts {
    uint32_t high[4], low[4];

    __device__ __forceinline__ void take(const uint32_t (&words)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = __uint_as_float(words[i]);
            high[i] = to_tf32(x);
            if (TERMS > 1)
                low[i] = to_tf32(x - __uint_as_float(high[i]));
        }
    }
};

DEVICE void multiply_parts(uint32_t stage, sums &sum, sums &rest)
{
    multiply<parts>(stage, [&](int i, int j, parts &a, parts &b, int at) {
        multiply_add_tf32(sum[i][j], a.high, b.high[at], b.high[at + 1]);
        if (TERMS > 1) {
            multiply_add_tf32(rest[i][j], a.low, b.high[at], b.high[at + 1]);
            multiply_add_tf32(rest[i][j], a.high, b.low[at], b.low[at + 1]);
        }
    });
}

DEVICE float sum_plainly(const product_call &c, const operand_a &a, const operand_b &b,
                         long long row, long long column)
{
    float total = 0;
#pragma unroll 1
    for (long long k = 0; k < c.k; k++)
        total += __ldg(a.from + row * c.a_mn + k * c.a_k) *
                 __ldg(b.from + column * c.b_mn + k * c.b_k);
    return total;
}

DEVICE void add_to(sums &sum, const sums &more)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M * BLOCKS_N * 4; i++)
        (&sum[0][0][0])[i] += (&more[0][0][0])[i];
}

DEVICE void one_tile(const product_call &c, long long batch, uint32_t shared)
{
    long long tile_m, tile_n;
    tile_place(blockIdx.x, (c.m + TILE_M - 1) / TILE_M, (c.n + TILE_N - 1) / TILE_N, &tile_m,
               &tile_n);
    operand_a a = operand_a_of(c, (const float *)c.a + batch_offset(c, c.a_batch, batch),
                               tile_m * TILE_M, c.m);
    operand_b b = operand_b_of(c, (const float *)c.b + batch_offset(c, c.b_batch, batch),
                               tile_n * TILE_N);
    sums sum = {}, rest = {};
    k_walk walk(a, b, c.k, shared);
    for (long long k = 0; k < c.k; k += DEPTH, walk.leave()) {
        uint32_t stage = walk.come();
        if (TERMS == 1) {
            multiply_parts(stage, sum, rest);
        } else {
            sums leading = {};
            multiply_parts(stage, leading, rest);
            add_to(sum, leading);
        }
    }
    copies_wait<0>();
    if (TERMS > 1)
        add_to(sum, rest);
    finish(c, batch_offset(c, c.y_batch, batch), a.mn0, c.m, b.mn0, sum,
           [&](float &v, long long row, long long column) {
               if (v != v)
                   v = sum_plainly(c, a, b, row, column);
           });
}

#endif

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    matmul_tf32(const __grid_constant__ product_call c)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char shared[];
    for (long long batch = blockIdx.y; batch < c.batch_count; batch += gridDim.y) {
        one_tile(c, batch, shared_address(shared));
        __syncthreads();
    }
#endif
}
