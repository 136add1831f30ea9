/* Kernels of formulas. The source that is made of a formula sets RESULTS, the folds FOLD0, .. of
 * its results and includes this; then it defines
 *
 *     DEVICE void formula(const real *x, const real *p, real *y)
 *
 * over inputs, parameters and results, and ends in FORMULA_KERNELS.
 *
 * MODE plain: grid and block as in pointwise.cuh. MODE rows: TEAM threads fold one element of the
 * results, THREADS a block. MODE columns: 32 units of results a block, its warps go through what is
 * folded in turns. When folding, block y takes on `part` elements of what is folded and its results
 * are partial ones, [part][element]. The knobs of the inputs are those of inputs.cuh; NDIM
 * dimensions are kept, FOLDED_NDIM folded. LEAD and ODD: see expression_fold.cuh. */
#ifndef CUP_EXPRESSION_CUH
#define CUP_EXPRESSION_CUH

#include "expression_call.cuh"

#ifndef REAL
#define REAL 0 /* the cup_dtype that is computed in: f32 or f64 */
#endif
#ifndef Y0
#define Y0 REAL
#endif
#ifndef Y1
#define Y1 Y0
#endif
#ifndef Y2
#define Y2 Y0
#endif
#ifndef Y3
#define Y3 Y0
#endif
#ifndef Y4
#define Y4 Y0
#endif
#define SHORT_RESULT(y) (y == 2 || y == 3 || y >= 9)
#define SHORT_MATH                                                                                 \
    (REAL == 0 && SHORT_RESULT(Y0) && SHORT_RESULT(Y1) && SHORT_RESULT(Y2) && SHORT_RESULT(Y3) &&  \
     SHORT_RESULT(Y4))
#ifndef VEC
#define VEC 1
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef NDIM
#define NDIM 1
#endif
#ifndef FOLDED_NDIM
#define FOLDED_NDIM 1
#endif
#ifndef MODE
#define MODE EXPRESSION_PLAIN
#endif
#ifndef TEAM
#define TEAM 32
#endif
#ifndef X0
#define X0 (REAL | POINTWISE_FLAT << 8 | 1 << 16)
#endif
#define THREADS POINTWISE_THREADS

#include "functions.cuh"

typedef dtype_of<REAL>::type real;
#include "inputs.cuh"

#if REAL == CUP_F32
#define PARAMETERS(c) (c).parameters_f32
#else
#define PARAMETERS(c) (c).parameters
#endif

/* The types of cup_expr_fold. */
#define FOLD_NONE 0
#define FOLD_SUM 1
#define FOLD_MEAN 2
#define FOLD_MIN 3
#define FOLD_MAX 4

template <int J> struct result_of {
    static const int dtype = J == 0 ? Y0 : J == 1 ? Y1 : J == 2 ? Y2 : J == 3 ? Y3 : Y4;
    typedef typename dtype_of<dtype>::type type;
};

#if RESULTS == 1
#define EACH_RESULT(do) do(0)
#elif RESULTS == 2
#define EACH_RESULT(do) do(0) do(1)
#elif RESULTS == 3
#define EACH_RESULT(do) do(0) do(1) do(2)
#elif RESULTS == 4
#define EACH_RESULT(do) do(0) do(1) do(2) do(3)
#else
#define EACH_RESULT(do) do(0) do(1) do(2) do(3) do(4)
#endif

DEVICE void formula(const real *x, const real *p, real *y);

#define INPUT(k, ndim) input<k, X##k, ndim>
#define DECLARE(k) INPUT(k, SPACE_NDIM) x##k[COUNT];
#define VALUE(k) x##k[u].value(i),

#if MODE == EXPRESSION_PLAIN

#define SPACE_NDIM NDIM
#define READ(k) x##k[u].read(c.x[k], c, start + u * (THREADS * VEC));
#define ONE(k) INPUT(k, NDIM)::one(c.x[k], c, index),
#define WRITE(j) write<result_of<j>::type>(c.y[j], start + u * (THREADS * VEC), y[j]);
#define WRITE_ONE(j) ((result_of<j>::type *)c.y[j])[index] = convert<result_of<j>::type>(y[j]);

/* COUNT whole units of a thread: all is read before anything is computed. */
template <int COUNT> DEVICE void compute(const expression_call &c, unsigned start)
{
    EACH(DECLARE)
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        EACH(READ)
    }
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        real y[RESULTS][VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const real x[] = {EACH(VALUE)};
            real one[RESULTS];
            formula(x, PARAMETERS(c), one);
#pragma unroll
            for (int j = 0; j < RESULTS; j++)
                y[j][i] = one[j];
        }
        EACH_RESULT(WRITE)
    }
}

/* The same at the end of the results, where units may be missing or cut. */
DEVICE void compute_last(const expression_call &c, unsigned start)
{
#pragma unroll 1
    for (int u = 0; u < UNROLL; u++, start += THREADS * VEC) {
        if (start + VEC <= c.count) {
            compute<1>(c, start);
            continue;
        }
#pragma unroll 1
        for (unsigned index = start; index < c.count; index++) {
            const real x[] = {EACH(ONE)};
            real y[RESULTS];
            formula(x, PARAMETERS(c), y);
            EACH_RESULT(WRITE_ONE)
        }
    }
}

#define FORMULA_KERNELS                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        formula_plain(const __grid_constant__ expression_call c)                                   \
    {                                                                                              \
        const unsigned piece = THREADS * UNROLL * VEC;                                             \
        unsigned begin = blockIdx.x * piece, start = begin + threadIdx.x * VEC;                    \
        if (begin + piece <= c.count)                                                              \
            compute<UNROLL>(c, start);                                                             \
        else                                                                                       \
            compute_last(c, start);                                                                \
    }

#else
#include "expression_fold.cuh"
#endif

#endif
