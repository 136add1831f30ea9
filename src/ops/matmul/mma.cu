/* Matrix products by the tensor cores of every card from Turing on: y = activation(a b + bias),
 * 16-bit elements, sums in f32, any sizes and alignment.
 *
 * Grid: x counts tiles of TILE_M x TILE_N of y, y the matrices of a batch; 8 warps, 2 along m and 4
 * along n, each TILE_M / 2 x TILE_N / 4. Tiles of 32 of k travel to shared memory by asynchronous
 * copies of A_VEC and B_VEC elements, STAGES of them at a time, in 16-byte pieces whose places are
 * mixed by their line, so that eight lines can be read at once. 2 m n k operations. */
#include "product.cuh"
#include "ptx.cuh"

#ifndef TILE_M
#define TILE_M 128
#endif
#ifndef TILE_N
#define TILE_N 128
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef A_VEC
#define A_VEC 8
#endif
#ifndef B_VEC
#define B_VEC 8
#endif

#define DEPTH 32
#define A_BYTES (TILE_M * DEPTH * 2)
#define B_BYTES (TILE_N * DEPTH * 2)
#define BLOCKS_M (TILE_M / 2 / 16)
#define BLOCKS_N (TILE_N / 4 / 8)

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)

/* Where element `x` of line `line` lies in a tile whose lines are `Length` elements long. */
template <int Length> DEVICE uint32_t place(int line, int x)
{
    int mix = Length == DEPTH ? line >> 1 & 3 : line & 7;
    return (uint32_t)(line * Length * 2 + ((x / 8 ^ mix) << 4) + x % 8 * 2);
}

/* One operand: TILE of m or n by DEPTH of k. */
template <int Tile, int Along, int Vec> struct operand {
    enum { length = Along == PRODUCT_ALONG_K ? DEPTH : Tile, lines = Tile * DEPTH / length };
    const T *from;
    long long step;       /* of lines */
    long long mn0, mn_end;

    /* Orders the copies of the part of k that begins at k0. */
    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
#pragma unroll
        for (int i = 0; i < Tile * DEPTH / Vec / PRODUCT_THREADS; i++) {
            int piece = (int)threadIdx.x + i * PRODUCT_THREADS;
            int x = piece % (length / Vec) * Vec, line = piece / (length / Vec);
            long long mn = mn0 + (Along == PRODUCT_ALONG_K ? line : x);
            long long k = k0 + (Along == PRODUCT_ALONG_K ? x : line);
            bool valid = mn < mn_end && k < k_end;
            const T *at = from + (Along == PRODUCT_ALONG_K ? mn * step + k : k * step + mn);
            copy_elements<Vec>(to + place<length>(line, x), at, valid);
        }
    }

    template <int Count>
    static __device__ __forceinline__ void copy_elements(uint32_t to, const T *at, bool valid)
    {
        if (Count == 8)
            copy_async16(to, at, valid);
        else if (Count == 1)
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(valid ? at->bits : (uint16_t)0)
                         : "memory");
        else if (Count == 4)
            copy_async8(to, at, valid);
        else
            copy_async4(to, at, valid);
    }

    /* Four blocks of 8 by 8: `mn` and `k` begin them, the second and fourth lie 8 further along
     * m or n when `mn_first`, else along k. */
    static __device__ __forceinline__ void read(uint32_t (&r)[4], uint32_t tile, int mn, int k,
                                                bool mn_first)
    {
        int lane = threadIdx.x % 32, block = lane / 8, row = lane % 8;
        int near = (block & 1) * 8, far = (block >> 1) * 8;
        int mn_at = mn + (mn_first ? near : far), k_at = k + (mn_first ? far : near);
        if (Along == PRODUCT_ALONG_K)
            load_matrices(r, tile + place<length>(mn_at + row, k_at));
        else
            load_matrices_turned(r, tile + place<length>(k_at + row, mn_at));
    }
};

typedef operand<TILE_M, A_ALONG, A_VEC> operand_a;
typedef operand<TILE_N, B_ALONG, B_VEC> operand_b;
typedef float sums[BLOCKS_M][BLOCKS_N][4];

DEVICE void multiply(uint32_t a_tile, uint32_t b_tile, sums &sum)
{
    int warp = threadIdx.x / 32, m0 = warp / 4 * (TILE_M / 2), n0 = warp % 4 * (TILE_N / 4);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t a[BLOCKS_M][4], b[BLOCKS_N / 2][4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
            operand_a::read(a[i], a_tile, m0 + 16 * i, k, true);
#pragma unroll
        for (int j = 0; j < BLOCKS_N / 2; j++)
            operand_b::read(b[j], b_tile, n0 + 16 * j, k, false);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++)
                multiply_add(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
    }
}

DEVICE void finish(const product_call &c, const one_matrix &one, long long row0, long long column0,
                   const sums &sum)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T *bias = (const T *)c.bias;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                long long row = row0 + warp / 4 * (TILE_M / 2) + 16 * i + lane / 4 + l / 2 * 8;
                long long column = column0 + warp % 4 * (TILE_N / 4) + 8 * j + lane % 4 * 2 + l % 2;
                if (row >= one.m || column >= c.n)
                    continue;
                float v = sum[i][j][l] + (bias ? to_real(bias[column]) : 0.0f);
                long long at = one.y + row * c.y_row + column;
                if (c.pre)
                    ((T *)c.pre)[at] = from_real<T>(v);
                ((T *)c.y)[at] = from_real<T>(activated(v));
            }
}

DEVICE void one_tile(const product_call &c, long long batch, long long tile, uint32_t shared)
{
    one_matrix one = matrix_at(c, batch);
    long long tile_m, tile_n, tiles_m = (one.m + TILE_M - 1) / TILE_M;
    long long tiles_n = (c.n + TILE_N - 1) / TILE_N;
    if (GROUPS == PRODUCT_GROUPS_OF_ROWS && tile >= tiles_m * tiles_n)
        return;
    tile_place(tile, tiles_m, tiles_n, &tile_m, &tile_n);
    operand_a a = {(const T *)c.a + one.a, A_ALONG == PRODUCT_ALONG_K ? c.a_mn : c.a_k,
                   tile_m * TILE_M, one.m};
    operand_b b = {(const T *)c.b + one.b,
                   B_ALONG == PRODUCT_ALONG_K ? c.b_mn : c.b_k, tile_n * TILE_N, c.n};
    sums sum = {};
    long long ahead = 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++, ahead += DEPTH) {
        uint32_t stage = shared + i * (A_BYTES + B_BYTES);
        if (ahead < one.k) {
            a.bring(stage, ahead, one.k);
            b.bring(stage + A_BYTES, ahead, one.k);
        }
        copies_end();
    }
    int now = 0, next = STAGES - 1;
    for (long long k = 0; k < one.k; k += DEPTH, ahead += DEPTH) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (ahead < one.k) {
            uint32_t stage = shared + next * (A_BYTES + B_BYTES);
            a.bring(stage, ahead, one.k);
            b.bring(stage + A_BYTES, ahead, one.k);
        }
        copies_end();
        uint32_t stage = shared + now * (A_BYTES + B_BYTES);
        multiply(stage, stage + A_BYTES, sum);
        now = now == STAGES - 1 ? 0 : now + 1;
        next = next == STAGES - 1 ? 0 : next + 1;
    }
    copies_wait<0>();
    finish(c, one, a.mn0, b.mn0, sum);
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
