/* Products of f32 by the tensor cores of Ampere and later: y = activation(a b + bias), any sizes
 * and alignment; mma_tf32.cuh says what is multiplied.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y, y the matrices of a batch; mma_tile.cuh says what a
 * block does. An element that is NaN is summed again without tensor cores. */
/* Knobs: CUP_T, TERMS, TILE_M, TILE_N, STAGES, A_VEC, B_VEC. */
#include "product.cuh"

#define DEPTH 32
#define ELEMENT float

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

#include "mma_tf32.cuh"

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

DEVICE void one_tile(const product_call &c, long long batch, uint32_t shared)
{
    long long tile_m, tile_n;
    tile_place(blockIdx.x, (c.m + TILE_M - 1) / TILE_M, (c.n + TILE_N - 1) / TILE_N, &tile_m,
               &tile_n);
    operand_a a = operand_a_of(c, (const float *)c.a + batch_offset(c, c.a_batch, batch),
                               tile_m * TILE_M, c.m);
    operand_b b = operand_b_of(c, (const float *)c.b + batch_offset(c, c.b_batch, batch),
                               tile_n * TILE_N);
    sums sum = {};
    k_walk walk(a, b, c.k, shared);
    sum_parts(walk, 0, c.k, sum);
    copies_wait<0>();
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
