/* Matrix products by the tensor cores of every card from Turing on: y = activation(a b + bias),
 * 16-bit elements, sums in f32, any sizes and alignment.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y, y the matrices of a batch; mma_tile.cuh says what a
 * block does. 2 m n k operations. */
#include "product.cuh"

/* Knobs: TILE_M, TILE_N, STAGES, A_VEC, B_VEC. */

#define DEPTH 32
#define ELEMENT T

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)

#include "mma_tile.cuh"

DEVICE void one_tile(const product_call &c, long long batch, long long tile, uint32_t shared)
{
    one_matrix one = matrix_at(c, batch);
    long long tile_m, tile_n, tiles_m = (one.m + TILE_M - 1) / TILE_M;
    long long tiles_n = (c.n + TILE_N - 1) / TILE_N;
    if (GROUPS == PRODUCT_GROUPS_OF_ROWS && tile >= tiles_m * tiles_n)
        return;
    tile_place(tile, tiles_m, tiles_n, &tile_m, &tile_n);
    operand_a a = operand_a_of(c, (const T *)c.a + one.a, tile_m * TILE_M, one.m);
    operand_b b = operand_b_of(c, (const T *)c.b + one.b, tile_n * TILE_N);
    sums sum = {};
    k_walk walk(a, b, one.k, shared);
    for (long long k = 0; k < one.k; k += DEPTH, walk.leave())
        multiply<whole_words>(walk.come(),
                              [&](int i, int j, whole_words &x, whole_words &w, int at) {
                                  multiply_add(sum[i][j], x.at, w.at[at], w.at[at + 1], T());
                              });
    copies_wait<0>();
    finish(c, one.y, a.mn0, one.m, b.mn0, sum, [](float &, long long, long long) {});
}

#endif

#if !LIST

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    matmul_mma(const __grid_constant__ product_call c)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)
    extern __shared__ __align__(128) char shared[];
    for (long long batch = blockIdx.y; batch < c.batch_count; batch += gridDim.y) {
        one_tile(c, batch, blockIdx.x, shared_address(shared));
        __syncthreads();
    }
#endif
}

#else

/* The same for a list: x counts the tiles of all items. */
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    matmul_mma_list(const __grid_constant__ product_list l)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)
    extern __shared__ __align__(128) char shared[];
    long long tile = blockIdx.x;
    product_call c = item_at(l, tile);
    one_tile(c, 0, tile, shared_address(shared));
#endif
}

#endif
