/* The gradient of conv2d's weight by the tensor cores of every card from Turing on: elements of 16
 * bits, or f32 (mma_tf32.cuh), whose channels are neighbours in memory, in x and in dy; sums in
 * f32.
 *
 * A product of TILE_M results and TILE_N elements of the columns over the places of a part, as
 * mma_tile.cuh makes it. Grid: x counts tiles, y groups, z parts, whose sums conv_join adds. */
#define ALONG 1
#define A_ALONG PRODUCT_ALONG_MN
#define B_ALONG PRODUCT_ALONG_MN
#include "conv.cuh"

#ifndef TILE_M
#define TILE_M 128
#endif
#ifndef TILE_N
#define TILE_N 128
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef A_VEC /* of neighbouring channels of dy */
#define A_VEC 8
#endif
#ifndef B_VEC /* of x */
#define B_VEC 8
#endif

#define DEPTH (64 / (int)sizeof(T))
#define ELEMENT T

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)

#include "mma_sums.cuh"

/* Where a place lies: image, row and column of dy. */
DEVICE void place_at(const conv_parts &p, unsigned at, int *image, int *row, int *column)
{
    unsigned rest = divided(at, p.by_columns);
    *column = (int)(at - rest * p.by_columns.size);
    *image = (int)divided(rest, p.by_rows);
    *row = (int)(rest - *image * p.by_rows.size);
}

/* Some results of dy. */
struct results_of_dy {
    const conv_call &c;
    const conv_parts &p;
    const T *dy;
    int results;

    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
        const int pieces = TILE_M / A_VEC;
        int at = threadIdx.x % pieces * A_VEC;
#pragma unroll
        for (int i = 0; i < (DEPTH * pieces + CONV_THREADS - 1) / CONV_THREADS; i++) {
            int line = (int)threadIdx.x / pieces + i * (CONV_THREADS / pieces);
            if (DEPTH * pieces < CONV_THREADS && line >= DEPTH)
                break;
            int image, row, column;
            place_at(p, (unsigned)k0 + line, &image, &row, &column);
            bool valid = k0 + line < k_end && at < results;
            copy_async<A_VEC * sizeof(T)>(to + operand_a::place(line, at),
                                          valid ? dy + image * c.w_step[0] + row * c.w_step[2] +
                                                      column * c.w_step[3] + at
                                                : dy,
                                          valid);
        }
    }
};

/* Some elements of the columns: this thread's is always the same. */
struct elements_of_x {
    const conv_call &c;
    const conv_parts &p;
    const conv_class &l;
    const T *x;
    conv_element element;
    bool valid;

    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
        const int pieces = TILE_N / B_VEC;
        int at = threadIdx.x % pieces * B_VEC;
#pragma unroll
        for (int n = 0; n < DEPTH * pieces / CONV_THREADS; n++) {
            int line = (int)threadIdx.x / pieces + n * (CONV_THREADS / pieces);
            int image, i, j;
            place_at(p, (unsigned)k0 + line, &image, &i, &j);
            int row = l.line[0].from + i * l.line[0].step;
            int column = l.line[1].from + j * l.line[1].step;
            bool inside = valid && k0 + line < k_end &&
                          conv_inside(l, row + element.row, column + element.column);
            copy_async<B_VEC * sizeof(T)>(to + operand_b::place(line, at),
                                          inside ? x + image * c.x_step[0] + row * c.x_step[2] +
                                                       column * c.x_step[3] + element.x
                                                 : x,
                                          inside);
        }
    }
};

#if CUP_T == CUP_F32
/* Where infinities have met zeros that stand for what is outside. */
DEVICE float sum_plainly(const results_of_dy &a, const elements_of_x &b, int result, int k,
                         long long begin, long long end)
{
    float total = 0;
    conv_element e = conv_element_of(b.c, b.l, k);
#pragma unroll 1
    for (long long at = begin; at < end; at++) {
        int image, i, j;
        place_at(b.p, (unsigned)at, &image, &i, &j);
        int row = b.l.line[0].from + i * b.l.line[0].step;
        int column = b.l.line[1].from + j * b.l.line[1].step;
        if (conv_inside(b.l, row + e.row, column + e.column))
            total += a.dy[image * a.c.w_step[0] + i * a.c.w_step[2] + j * a.c.w_step[3] + result] *
                     b.x[image * b.c.x_step[0] + row * b.c.x_step[2] + column * b.c.x_step[3] +
                         e.x];
    }
    return total;
}
#endif

DEVICE void one_tile(const conv_call &c, const conv_parts &p, const conv_class &l, int group,
                     int result0, int depth0, uint32_t shared)
{
    int own = depth0 + (int)threadIdx.x % (TILE_N / B_VEC) * B_VEC;
    results_of_dy a = {c, p, (const T *)c.w + group * c.w_group + result0, c.results - result0};
    elements_of_x b = {c, p, l, (const T *)c.x + group * c.x_group, conv_element_of(c, l, own),
                       own < l.depth};
    long long begin = blockIdx.z * p.part, end = begin + p.part;
    end = end < p.all ? end : p.all;
    sums sum = {};
    k_walk walk(a, b, end, shared, begin);
    sum_parts(walk, begin, end, sum);
    copies_wait<0>();
    float *to = (float *)p.sums + ((long long)blockIdx.z * c.groups + group) * c.results * p.depth;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int result = (int)row_of(result0, i, n), k = (int)column_of(depth0, j, n);
                if (result >= c.results || k >= p.depth)
                    continue;
                float v = sum[i][j][n];
#if CUP_T == CUP_F32
                if (v != v)
                    v = sum_plainly(a, b, result - result0, k, begin, end);
#endif
                to[(long long)result * p.depth + k] = v;
            }
}

#endif

extern "C" __global__ void __launch_bounds__(CONV_THREADS, 1)
    conv_mma_weight(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)
    extern __shared__ __align__(128) char shared[];
    conv_class l(c, 0, 0);
    int result0 = (int)(blockIdx.x / p.depths) * TILE_M;
    int depth0 = (int)(blockIdx.x % p.depths) * TILE_N;
    for (int group = blockIdx.y; group < c.groups; group += gridDim.y) {
        one_tile(c, p, l, group, result0, depth0, shared_address(shared));
        __syncthreads();
    }
#endif
}
