/* conv2d and the gradient of its input by the tensor cores of every card from Turing on: 16-bit
 * elements whose channels are neighbours in memory, in x and in the weight; sums in f32.
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

#define DEPTH 32
#define ELEMENT T

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)

#include "mma_tile.cuh"

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
            copy_async<A_VEC * 2>(to + operand_a::place(line, at), valid ? x + p.from + e.x : x,
                                  valid);
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
            copy_async<A_VEC * 2>(to + operand_b::place(line, at),
                                  valid ? w + line * c.w_step[0] + e.w : w, valid);
        }
    }
};

DEVICE void write_sums(const conv_call &c, int group, int result0, const conv_place *places,
                       const sums &sum)
{
    T *y = (T *)c.y + group * c.y_group;
    const T *bias = (const T *)c.bias;
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++) {
        int result = (int)column_of(result0, j, 0);
        long long channel = (long long)group * c.results + result;
        float add[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (bias && result + n < c.results)
                add[n] = to_real(bias[(channel + n) * c.bias_step]);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                long long to = places[row_of(0, i, 2 * half)].to;
                if (to < 0 || result >= c.results)
                    continue;
                float low = sum[i][j][2 * half] + add[0], high = sum[i][j][2 * half + 1] + add[1];
                if (PAIRS) {
                    *(uint32_t *)(y + to + result) = pack(low, high, T());
                    continue;
                }
                y[to + result * c.y_step[1]] = from_real<T>(low);
                if (result + 1 < c.results)
                    y[to + (result + 1) * c.y_step[1]] = from_real<T>(high);
            }
    }
}

DEVICE void one_tile(const conv_call &c, const conv_class &l, int group, int result0,
                     const conv_place *places, uint32_t shared)
{
    columns a = {c, l, places, (const T *)c.x + group * c.x_group};
    rows b = {c, l, (const T *)c.w + group * c.w_group + result0 * c.w_step[0],
              c.results - result0};
    sums sum = {};
    k_walk walk(a, b, l.depth, shared);
    for (int k = 0; k < l.depth; k += DEPTH, walk.leave())
        multiply<whole_words>(walk.come(),
                              [&](int i, int j, whole_words &x, whole_words &w, int at) {
                                  multiply_add(sum[i][j], x.at, w.at[at], w.at[at + 1], T());
                              });
    copies_wait<0>();
    write_sums(c, group, result0, places, sum);
}

#endif

extern "C" __global__ void __launch_bounds__(CONV_THREADS, 1)
    conv_mma(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800 || CUP_T == CUP_F16)
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
