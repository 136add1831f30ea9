/* Matrix products without tensor cores: y = activation(a b + bias) for any strides and sizes, f32
 * and f64 at full accuracy, 16-bit types with f32 sums.
 *
 * Grid: x counts tiles of TILE x TILE of y, y the matrices of a batch; 256 threads. A thread owns
 * SIDE x SIDE elements in groups of four, held in registers; the next DEPTH of k is on its way
 * from memory while the last one is multiplied out of shared memory. 2 m n k operations; a is
 * read n / TILE times, b m / TILE times, mostly from L2. */
#include "product.cuh"

/* Knobs: TILE_M, B_VEC. */
#define TILE TILE_M /* in both directions */
#ifndef A_VEC /* neighbours read at once */
#define A_VEC 1
#endif

#define DEPTH 16
#define SIDE (TILE / 16)
#define EACH (TILE * DEPTH / PRODUCT_THREADS) /* elements a thread brings of each operand */
#define ROW (TILE + 4)

/* One operand's part of DEPTH by TILE: what this thread brings of it. */
template <int Along, int Vec> struct bringer {
    T at[EACH];

    /* Where piece `i` of this thread lies in the part. */
    static __device__ __forceinline__ void place(int i, int *mn, int *k)
    {
        int piece = (int)threadIdx.x + i * PRODUCT_THREADS;
        if (Along == PRODUCT_ALONG_K) {
            *k = piece % (DEPTH / Vec) * Vec;
            *mn = piece / (DEPTH / Vec);
        } else {
            *mn = piece % (TILE / Vec) * Vec;
            *k = piece / (TILE / Vec);
        }
    }

    /* A vector lies wholly inside or outside: sizes along it are multiples of Vec. */
    __device__ __forceinline__ void read(const T *from, long long step_mn, long long step_k,
                                         long long mn0, long long k0, long long mn_end,
                                         long long k_end)
    {
#pragma unroll
        for (int i = 0; i < EACH / Vec; i++) {
            int mn, k;
            place(i, &mn, &k);
            vec<T, Vec> v = {};
            if (mn0 + mn < mn_end && k0 + k < k_end)
                v = load<Vec>(from + (mn0 + mn) * step_mn + (k0 + k) * step_k);
#pragma unroll
            for (int j = 0; j < Vec; j++)
                at[i * Vec + j] = v.at[j];
        }
    }

    __device__ __forceinline__ void put(real (*to)[ROW]) const
    {
#pragma unroll
        for (int i = 0; i < EACH / Vec; i++) {
            int mn, k;
            place(i, &mn, &k);
#pragma unroll
            for (int j = 0; j < Vec; j++)
                to[Along == PRODUCT_ALONG_K ? k + j : k][Along == PRODUCT_ALONG_K ? mn : mn + j] =
                    to_real(at[i * Vec + j]);
        }
    }
};

/* Element i of the SIDE that a thread owns along one side of the tile. */
DEVICE int owned(int thread, int i)
{
    return thread * 4 + i % 4 + i / 4 * 64;
}

DEVICE void multiply(const real (*left)[ROW], const real (*right)[ROW], real (&sum)[SIDE][SIDE])
{
    int row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        real a[SIDE], b[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            a[i] = left[k][owned(row, i)];
            b[i] = right[k][owned(column, i)];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                sum[i][j] += a[i] * b[j];
    }
}

DEVICE void finish(const product_call &c, const one_matrix &one, long long row0, long long column0,
                   const real (&sum)[SIDE][SIDE])
{
    const T *bias = (const T *)c.bias;
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        long long row = row0 + owned(threadIdx.x / 16, i);
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            long long column = column0 + owned(threadIdx.x % 16, j);
            if (row >= one.m || column >= c.n)
                continue;
            real v = sum[i][j] + (bias ? to_real(bias[column]) : (real)0);
            long long at = one.y + row * c.y_row + column;
            if (c.pre)
                ((T *)c.pre)[at] = from_real<T>(v);
            ((T *)c.y)[at] = from_real<T>(activated(v));
        }
    }
}

DEVICE void one_tile(const product_call &c, long long batch, long long tile,
                     real (*left)[DEPTH][ROW], real (*right)[DEPTH][ROW])
{
    one_matrix one = matrix_at(c, batch);
    const T *a = (const T *)c.a + one.a, *b = (const T *)c.b + one.b;
    long long tile_m, tile_n, tiles_m = (one.m + TILE - 1) / TILE;
    long long tiles_n = (c.n + TILE - 1) / TILE;
    if (GROUPS == PRODUCT_GROUPS_OF_ROWS && tile >= tiles_m * tiles_n)
        return;
    tile_place(tile, tiles_m, tiles_n, &tile_m, &tile_n);
    long long row0 = tile_m * TILE, column0 = tile_n * TILE;
    bringer<A_ALONG, A_VEC> bring_a;
    bringer<B_ALONG, B_VEC> bring_b;
    real sum[SIDE][SIDE] = {};
    bring_a.read(a, c.a_mn, c.a_k, row0, 0, one.m, one.k);
    bring_b.read(b, c.b_mn, c.b_k, column0, 0, c.n, one.k);
    int now = 0;
    for (long long k = 0; k < one.k; k += DEPTH, now ^= 1) {
        bring_a.put(left[now]);
        bring_b.put(right[now]);
        __syncthreads();
        if (k + DEPTH < one.k) {
            bring_a.read(a, c.a_mn, c.a_k, row0, k + DEPTH, one.m, one.k);
            bring_b.read(b, c.b_mn, c.b_k, column0, k + DEPTH, c.n, one.k);
        }
        multiply(left[now], right[now], sum);
    }
    finish(c, one, row0, column0, sum);
}

#if !LIST

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    matmul_plain(const __grid_constant__ product_call c)
{
    __shared__ alignas(16) real left[2][DEPTH][ROW], right[2][DEPTH][ROW];
    for (long long batch = blockIdx.y; batch < c.batch_count; batch += gridDim.y) {
        one_tile(c, batch, blockIdx.x, left, right);
        __syncthreads();
    }
}

#else

/* The same for a list: x counts the tiles of all items. */
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    matmul_plain_list(const __grid_constant__ product_list l)
{
    __shared__ alignas(16) real left[2][DEPTH][ROW], right[2][DEPTH][ROW];
    long long tile = blockIdx.x;
    product_call c = item_at(l, tile);
    one_tile(c, 0, tile, left, right);
}

#endif
