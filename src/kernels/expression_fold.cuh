/* Formulas that are folded: see expression.cuh, which includes this. */
#ifndef CUP_EXPRESSION_FOLD_CUH
#define CUP_EXPRESSION_FOLD_CUH

template <int J> struct fold_of {
    static const int how = J == 0   ? FOLD0
                           : J == 1 ? FOLD1
                           : J == 2 ? FOLD2
                           : J == 3 ? FOLD3
                                    : FOLD4;
    static __device__ __forceinline__ real start()
    {
        const real infinity = (real)__int_as_float(0x7f800000);
        return how == FOLD_MIN ? infinity : how == FOLD_MAX ? -infinity : (real)0;
    }
    static __device__ __forceinline__ real join(real a, real b)
    {
        return how == FOLD_MIN ? f_min(a, b) : how == FOLD_MAX ? f_max(a, b) : a + b;
    }
    static __device__ __forceinline__ real finish(real a, const expression_call &c)
    {
        return how == FOLD_MEAN ? a * (real)c.share : a;
    }
};

/* Where the parts of input k begin for one element, or one turn. */
#define PLACE(k)                                                                                   \
    const INPUT(k, 1)::element *at##k =                                                            \
        (const INPUT(k, 1)::element *)c.x[k] + offset_of<k, OUTER_NDIM>(outer, place);
#define START(j)                                                                                   \
    _Pragma("unroll") for (int i = 0; i < VEC; i++) sum[j][i] = fold_of<j>::start();
#define JOIN(j) sum[j][i] = fold_of<j>::join(sum[j][i], y[j]);

/* Takes one unit's elements in. */
#define TAKE_IN(u)                                                                                 \
    _Pragma("unroll") for (int i = 0; i < VEC; i++)                                                \
    {                                                                                              \
        const real x[] = {EACH(VALUE)};                                                            \
        real y[RESULTS];                                                                           \
        formula(x, PARAMETERS(c), y);                                                              \
        EACH_RESULT(JOIN)                                                                          \
    }

#if MODE == EXPRESSION_ROWS

#define SPACE_NDIM FOLDED_NDIM
#define OUTER_NDIM NDIM
#define READ(k) x##k[u].read(at##k, folded, at + u * (TEAM * VEC));
#define ONE(k) INPUT(k, SPACE_NDIM)::one(at##k, folded, index),
#define JOIN_NAMES(a, b) a##b
#define JOINED(a, b) JOIN_NAMES(a, b)
#define ADD_UP(j)                                                                                  \
    {                                                                                              \
        _Pragma("unroll") for (int i = 1; i < VEC; i++) sum[j][0] =                                \
            fold_of<j>::join(sum[j][0], sum[j][i]);                                                \
        sum[j][0] = over_team<j>(sum[j][0]);                                                       \
    }
#define FINISH(j)                                                                                  \
    ((result_of<j>::type *)c.y[j])[blockIdx.y * c.count + element] =                               \
        convert<result_of<j>::type>(fold_of<j>::finish(sum[j][0], c));

/* Joins what the threads of a team have, in a fixed order; the first has the result. */
template <int J> DEVICE real over_team(real sum)
{
    const int lanes = TEAM < 32 ? TEAM : 32;
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2)
        sum = fold_of<J>::join(sum, __shfl_xor_sync(0xffffffff, sum, step));
    if (TEAM <= 32)
        return sum;
    __shared__ real shared[RESULTS][THREADS / 32];
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0)
        shared[J][warp] = sum;
    __syncthreads();
    if (threadIdx.x % TEAM == 0)
        for (int i = 1; i < TEAM / 32; i++)
            sum = fold_of<J>::join(sum, shared[J][warp + i]);
    return sum;
}

template <int COUNT>
DEVICE void go_on(const expression_call &c, const expression_space &outer,
                  const expression_space &folded, unsigned place, unsigned &at, unsigned end,
                  real (&sum)[RESULTS][VEC])
{
    EACH(PLACE)
    for (; at + (COUNT - 1) * TEAM * VEC < end; at += COUNT * TEAM * VEC) {
        EACH(DECLARE)
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            EACH(READ)
        }
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            TAKE_IN(u)
        }
    }
}

#ifdef LEAD
/* Rows whose units are whole from the first multiple of 16 bytes on, which is at the same place in
 * all inputs: LEAD is one of them. What is before it, and what is left at the end, is taken one by
 * one; `at` and `end` become those of the whole units. */
DEVICE void take_ends(const expression_call &c, const expression_space &outer,
                      const expression_space &folded, unsigned place, unsigned &at, unsigned &end,
                      real (&sum)[RESULTS][VEC])
{
    EACH(PLACE)
    const unsigned size = sizeof(*JOINED(at, LEAD)), lane = threadIdx.x % TEAM;
    unsigned lead = (unsigned)-(long long)(uint64_t)JOINED(at, LEAD) % 16 / size;
    lead = lead < c.length ? lead : c.length;
    unsigned whole = c.length - (c.length - lead) % VEC;
#pragma unroll 1
    for (unsigned ends = lane; ends < lead + c.length - whole; ends += TEAM) {
        unsigned index = ends < lead ? ends : ends - lead + whole;
        if (index < whole ? blockIdx.y == 0 : blockIdx.y == gridDim.y - 1) {
            const int i = 0;
            const real x[] = {EACH(ONE)};
            real y[RESULTS];
            formula(x, PARAMETERS(c), y);
            EACH_RESULT(JOIN)
        }
    }
    at += lead;
    end += lead;
    end = end < whole ? end : whole;
}
#endif

DEVICE void fold_rows(const expression_call &c, const expression_space &kept,
                      const expression_space &folded)
{
    unsigned element = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    unsigned place = element < c.count ? element : c.count - 1;
    unsigned at = blockIdx.y * c.part + threadIdx.x % TEAM * VEC;
    unsigned end = blockIdx.y * c.part + c.part;
    end = end < c.length ? end : c.length;
    real sum[RESULTS][VEC];
    EACH_RESULT(START)
#ifdef LEAD
    end = blockIdx.y * c.part + c.part;
    take_ends(c, kept, folded, place, at, end, sum);
#endif
    go_on<UNROLL>(c, kept, folded, place, at, end, sum);
    go_on<1>(c, kept, folded, place, at, end, sum);
    EACH_RESULT(ADD_UP)
    if (element < c.count && threadIdx.x % TEAM == 0) {
        EACH_RESULT(FINISH)
    }
}

#define FOLD fold_rows

#else

#define SPACE_NDIM NDIM
#define OUTER_NDIM FOLDED_NDIM
#define WARPS (THREADS / 32)
#define READ(k)                                                                                    \
    x##k[u].read((const INPUT(k, 1)::element *)c.x[k] +                                            \
                     offset_of<k, FOLDED_NDIM>(folded, at + u * WARPS),                            \
                 kept, first);
#define FINISH(j) finish_columns<j>(c, first, sum[j], shared);

/* The sums of all warps, in order, written by the first. */
template <int J>
DEVICE void finish_columns(const expression_call &c, unsigned first, real (&sum)[VEC],
                           real (*shared)[32][VEC])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < VEC; i++)
        shared[warp][lane][i] = sum[i];
    __syncthreads();
    if (warp != 0 || first >= c.count)
        return;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        for (int w = 1; w < WARPS; w++)
            sum[i] = fold_of<J>::join(sum[i], shared[w][lane][i]);
        sum[i] = fold_of<J>::finish(sum[i], c);
    }
    typedef typename result_of<J>::type result;
    result *to = (result *)c.y[J] + blockIdx.y * c.count;
#ifdef ODD
#pragma unroll
    for (int i = 0; i < VEC; i++)
        to[first + i] = convert<result>(sum[i]);
#else
    write<result>(to, first, sum);
#endif
}

template <int COUNT>
DEVICE void go_on(const expression_call &c, const expression_space &kept,
                  const expression_space &folded, unsigned first, unsigned &at, unsigned end,
                  real (&sum)[RESULTS][VEC])
{
    for (; at + (COUNT - 1) * WARPS < end; at += COUNT * WARPS) {
        EACH(DECLARE)
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            EACH(READ)
        }
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            TAKE_IN(u)
        }
    }
}

DEVICE void fold_columns(const expression_call &c, const expression_space &kept,
                         const expression_space &folded)
{
    __shared__ real shared[WARPS][32][VEC];
    unsigned first = (blockIdx.x * 32 + threadIdx.x % 32) * VEC;
#ifdef ODD /* the last unit ends with the columns, and begins in the unit before */
    if (first < c.count && c.count - first < VEC)
        first = c.count - VEC;
#endif
    unsigned at = blockIdx.y * c.part + threadIdx.x / 32;
    unsigned end = blockIdx.y * c.part + c.part;
    end = end < c.length ? end : c.length;
    real sum[RESULTS][VEC];
    EACH_RESULT(START)
    if (first < c.count) {
        go_on<UNROLL>(c, kept, folded, first, at, end, sum);
        go_on<1>(c, kept, folded, first, at, end, sum);
    }
    EACH_RESULT(FINISH)
}

#define FOLD fold_columns

#endif

#define FORMULA_KERNELS                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        formula_fold(const __grid_constant__ expression_call c,                                    \
                     const __grid_constant__ expression_space kept,                                \
                     const __grid_constant__ expression_space folded)                              \
    {                                                                                              \
        FOLD(c, kept, folded);                                                                     \
    }

#endif
