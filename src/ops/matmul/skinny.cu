/* Matrix products of a handful of rows, as decoding makes them: y [m,n] = activation(x w^T + bias)
 * for m <= 16, where reading the weights [n,k] is all that costs.
 *
 * matmul_rows: 16-bit elements. A block of 8 warps takes 16 TILES rows of w; the warps take runs of
 * RUN of k in turn, each lane 16 bytes of a row at a time, the next run of w and x on its way.
 * Tensor cores multiply: as the order of k is free, a lane's 16 bytes serve as they come, if x is
 * read in the same order. Grid: x counts rows of w, y the parts k is cut into; the part that
 * comes last adds all, in order. matmul_rows_plain: any floats, a warp a row of w, m <= 8. Grid:
 * x counts 8 rows of w. */
#include "product.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

#ifndef TOKENS /* rows of x that are computed, a multiple of 8 for matmul_rows */
#define TOKENS 8
#endif
#ifndef TILES
#define TILES 1
#endif

#define WARPS 8
#define RUN 128
#define STEPS (RUN / 32)
#define OCTETS (TOKENS / 8)
#define ROWS (16 * TILES)
#define VEC (16 / (int)sizeof(T))

DEVICE void put(const product_call &c, long long token, long long row, real v)
{
    if (token >= c.m || row >= c.n)
        return;
    if (c.bias)
        v += to_real(((const T *)c.bias)[row]);
    long long at = token * c.y_row + row;
    if (c.pre)
        ((T *)c.pre)[at] = from_real<T>(v);
    ((T *)c.y)[at] = from_real<T>(activated(v));
}

#if (CUP_T == CUP_F16 || CUP_T == CUP_BF16) && TOKENS % 8 == 0
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800 || CUP_T == CUP_F16

/* What a lane holds of a run: for every step 16 bytes of each of its two rows of w, for every tile,
 * and of its row of x, for every eight tokens. */
struct run_of_k {
    uint4 w[STEPS][TILES][2], x[STEPS][OCTETS];

    __device__ __forceinline__ void read(const product_call &c, long long row, long long k)
    {
        k += threadIdx.x % 4 * 8;
        row += threadIdx.x % 32 / 4;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                long long r = row + 8 * i;
                w[s][i / 2][i % 2] =
                    r < c.n && k + 32 * s < c.k
                        ? __ldcs((const uint4 *)((const T *)c.b + r * c.b_mn + k + 32 * s))
                        : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int o = 0; o < OCTETS; o++) {
                long long token = 8 * o + threadIdx.x % 32 / 4;
                x[s][o] = token < c.m && k + 32 * s < c.k
                              ? __ldg((const uint4 *)((const T *)c.a + token * c.a_mn + k + 32 * s))
                              : make_uint4(0, 0, 0, 0);
            }
    }
};

DEVICE void multiply(const run_of_k &run, float (&sum)[TILES][OCTETS][4])
{
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint4 &top = run.w[s][i][0], &bottom = run.w[s][i][1], &x = run.x[s][o];
                uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y};
                uint32_t second[4] = {top.z, bottom.z, top.w, bottom.w};
                multiply_add(sum[i][o], first, x.x, x.y, T());
                multiply_add(sum[i][o], second, x.z, x.w, T());
            }
}

/* Adds up the parts of k for element `index` of the block's; true when this block is to write. */
DEVICE bool add_parts(int parts, float *partial, unsigned *arrived, float (&sum)[TOKENS * ROWS],
                      unsigned *last)
{
    float *tile = partial + (long long)blockIdx.x * parts * TOKENS * ROWS;
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS)
        __stcg(tile + blockIdx.y * TOKENS * ROWS + i, sum[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrived + blockIdx.x, 1u) == (unsigned)parts - 1;
        if (*last)
            arrived[blockIdx.x] = 0;
    }
    __syncthreads();
    if (!*last)
        return false;
    __threadfence();
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS) {
        float total = 0;
        for (int part = 0; part < parts; part++)
            total += __ldcg(tile + part * TOKENS * ROWS + i);
        sum[i] = total;
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, TILES == 1 ? 2 : 1)
    matmul_rows(const __grid_constant__ product_call c, int part_runs, float *partial,
                unsigned *arrived)
{
    __shared__ float sums[WARPS][TOKENS * ROWS];
    __shared__ unsigned last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long row = (long long)blockIdx.x * ROWS;
    long long run = (long long)blockIdx.y * part_runs, runs = (c.k + RUN - 1) / RUN;
    long long end = run + part_runs < runs ? run + part_runs : runs;
    float sum[TILES][OCTETS][4] = {};
    run_of_k now, next;
    run += warp;
    if (run < end)
        now.read(c, row, run * RUN);
    for (; run < end; run += WARPS) {
        if (run + WARPS < end)
            next.read(c, row, (run + WARPS) * RUN);
        multiply(now, sum);
        now = next;
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int token = 8 * o + lane % 4 * 2 + l % 2, r = 16 * i + lane / 4 + l / 2 * 8;
                sums[warp][token * ROWS + r] = sum[i][o][l];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS) {
        float total = sums[0][i];
        for (int w = 1; w < WARPS; w++)
            total += sums[w][i];
        sums[0][i] = total;
    }
    if (gridDim.y > 1 && !add_parts((int)gridDim.y, partial, arrived, sums[0], &last))
        return;
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS)
        put(c, i / ROWS, row + i % ROWS, sums[0][i]);
}

#endif
#endif

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 2)
    matmul_rows_plain(const __grid_constant__ product_call c)
{
    long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= c.n)
        return;
    const T *w = (const T *)c.b + row * c.b_mn, *x = (const T *)c.a;
    real sum[TOKENS] = {};
#pragma unroll 4
    for (long long k = threadIdx.x % 32 * VEC; k < c.k; k += 32 * VEC) {
        vec<T, VEC> weights = load_once<VEC>(w + k);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= c.m)
                break;
            vec<T, VEC> values = load<VEC>(x + t * c.a_mn + k);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum[t] += to_real(weights.at[i]) * to_real(values.at[i]);
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        real total = warp_sum(sum[t]);
        if (threadIdx.x % 32 == 0)
            put(c, t, row, total);
    }
}
