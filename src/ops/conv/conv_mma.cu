/* conv2d and the gradient of its input by the tensor cores of every card from Turing on: 16-bit
 * elements whose channels are neighbours in memory, in x and in the weight, with sums in f32, codes
 * of 8 bits (mma_codes.cuh), those of integers with exact sums, or f32 (mma_tf32.cuh).
 *
 * A product of TILE_M places and TILE_N results, as mma_tile.cuh makes it: the columns of the
 * places are copied from the image to shared memory as they are needed. Grid: x counts tiles of
 * results, of places and classes, y groups. Operations: 2 for each place, result and element of the
 * columns. */
#define ALONG 1
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
#ifndef A_VEC /* of neighbouring channels, of x and of the weight */
#define A_VEC 8
#endif
#define B_VEC A_VEC
#ifndef PAIRS /* whether two results can be written at once */
#define PAIRS 0
#endif

#define DEPTH (64 / (int)sizeof(T))
#define ELEMENT T

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16 || CODES)
#define HAS_MMA 1
#else
#define HAS_MMA 0
#endif

#if HAS_MMA

#include "mma_sums.cuh"

#define PIECES (DEPTH / A_VEC) /* of a line */
#define ROUNDS(lines) (((lines) * PIECES + CONV_THREADS - 1) / CONV_THREADS)

/* The columns of the places of a tile. */
struct columns {
    const conv_call &c;
    const conv_class &l;
    const conv_place *places;
    const T *x;

    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
        int at = threadIdx.x % PIECES * A_VEC, k = (int)k0 + at;
        conv_element e = conv_element_of(c, l, k);
#pragma unroll
        for (int i = 0; i < ROUNDS(TILE_M); i++) {
            int line = (int)threadIdx.x / PIECES + i * (CONV_THREADS / PIECES);
            const conv_place &p = places[line];
            bool valid = k < k_end && conv_inside(l, p.row + e.row, p.column + e.column);
            copy_async<A_VEC * sizeof(T)>(to + operand_a::place(line, at),
                                          valid ? x + p.from + e.x : x, valid);
        }
    }
};

/* The rows of the weight of some results. */
struct rows {
    const conv_call &c;
    const conv_class &l;
    const T *w;
    int results;

    __device__ __forceinline__ void bring(uint32_t to, long long k0, long long k_end) const
    {
        int at = threadIdx.x % PIECES * A_VEC, k = (int)k0 + at;
        conv_element e = conv_element_of(c, l, k);
#pragma unroll
        for (int i = 0; i < ROUNDS(TILE_N); i++) {
            int line = (int)threadIdx.x / PIECES + i * (CONV_THREADS / PIECES);
            if (TILE_N * PIECES < CONV_THREADS && line >= TILE_N)
                break;
            bool valid = k < k_end && line < results;
            copy_async<A_VEC * sizeof(T)>(to + operand_b::place(line, at),
                                          valid ? w + line * c.w_step[0] + e.w : w, valid);
        }
    }
};

#if CUP_T == CUP_F32
/* Where infinities have met zeros that stand for what is outside. */
DEVICE float sum_plainly(const columns &a, const rows &b, const conv_place &p, int row)
{
    float total = 0;
#pragma unroll 1
    for (int k = 0; k < a.l.depth; k++) {
        conv_element e = conv_element_of(a.c, a.l, k);
        if (conv_inside(a.l, p.row + e.row, p.column + e.column))
            total += a.x[p.from + e.x] * b.w[row * b.c.w_step[0] + e.w];
    }
    return total;
}

DEVICE void mend_sums(const columns &a, const rows &b, products &sum)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int row = (int)column_of(0, j, l);
                const conv_place &p = a.places[row_of(0, i, l)];
                if (sum[i][j][l] != sum[i][j][l] && p.to >= 0 && row < b.results)
                    sum[i][j][l] = sum_plainly(a, b, p, row);
            }
}
#endif

DEVICE void write_sums(const conv_call &c, int group, int result0, const conv_place *places,
                       const products &sum)
{
    result_type *y = (result_type *)c.y + group * c.y_group;
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++) {
        int result = (int)column_of(result0, j, 0);
        long long channel = (long long)group * c.results + result;
        const long long last = (long long)(group + 1) * c.results - 1;
        conv_end first(c, min(channel, last)), second(c, min(channel + 1, last));
        first.factor *= WIDENED(CUP_T) * WIDENED(CUP_T);
        second.factor *= WIDENED(CUP_T) * WIDENED(CUP_T);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                long long to = places[row_of(0, i, 2 * half)].to;
                if (to < 0 || result >= c.results)
                    continue;
                const float v[2] = {first.of(sum[i][j][2 * half]),
                                    second.of(sum[i][j][2 * half + 1])};
                const vec<result_type, 2> two = from_reals<result_type, 2>(v);
                if (PAIRS) {
                    *(vec<result_type, 2> *)(y + to + result) = two;
                    continue;
                }
                y[to + result * c.y_step[1]] = two.at[0];
                if (result + 1 < c.results)
                    y[to + (result + 1) * c.y_step[1]] = two.at[1];
            }
    }
}

DEVICE void one_tile(const conv_call &c, const conv_class &l, int group, int result0,
                     const conv_place *places, uint32_t shared)
{
    columns a = {c, l, places, (const T *)c.x + group * c.x_group};
    rows b = {c, l, (const T *)c.w + group * c.w_group + result0 * c.w_step[0],
              c.results - result0};
    products sum = {};
    k_walk walk(a, b, l.depth, shared);
    sum_parts(walk, 0, l.depth, sum);
    copies_wait<0>();
#if CUP_T == CUP_F32
    mend_sums(a, b, sum);
#endif
    write_sums(c, group, result0, places, sum);
}

#endif

extern "C" __global__ void __launch_bounds__(CONV_THREADS, 1)
    conv_mma(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
#if HAS_MMA
    extern __shared__ __align__(128) char shared[];
    __shared__ conv_place places[TILE_M];
    unsigned rest = blockIdx.x / t.results, place = rest % t.places, which = rest / t.places;
    conv_class l(c, (int)(which / t.classes[1]), (int)(which % t.classes[1]));
    if ((long long)place * TILE_M >= l.places(c))
        return;
    if (threadIdx.x < TILE_M)
        places[threadIdx.x] = l.place(c, (long long)place * TILE_M + threadIdx.x);
    for (int group = blockIdx.y; group < c.groups; group += gridDim.y) {
        __syncthreads();
        one_tile(c, l, group, (int)(blockIdx.x % t.results) * TILE_N, places,
                 shared_address(shared));
    }
#endif
}
