/* Elementwise kernels. A source, which CUP__FORMULA of ops/elementwise/pointwise.h makes or which
 * is NAME.cu, includes this, says what one element of the result is,
 *
 *     DEVICE real apply(const real *x, const attribute *a)
 *
 * and ends in POINTWISE(name_fwd), which makes the kernel; with SECOND defined, apply_second()
 * makes a second result. A thread takes UNROLL units of VEC neighbouring elements of the result,
 * which lies in row-major order, and reads all it needs before it computes; a unit's neighbours
 * travel in accesses of up to 16 bytes.
 *
 * Grid: pieces of POINTWISE_THREADS * UNROLL * VEC elements. Each input is read once and the
 * result written once. The knobs of the inputs are those of inputs.cuh. */
#ifndef CUP_POINTWISE_CUH
#define CUP_POINTWISE_CUH

#include "pointwise_call.cuh"

#ifndef REAL
#define REAL 0 /* the cup_dtype that is computed in: f32, f64 or i64 */
#endif
#ifndef Y
#define Y REAL /* the result's */
#endif
/* Results of 16 bits do not show the difference. */
#define SHORT_MATH (REAL == 0 && (Y == 2 || Y == 3 || Y >= 9))
#ifndef VEC
#define VEC 4
#endif
#ifndef UNROLL
#define UNROLL 2
#endif
#ifndef NDIM
#define NDIM 1
#endif
#ifndef X0
#define X0 (Y | POINTWISE_FLAT << 8 | 1 << 16)
#endif

#include "dependent.cuh"
#include "real_math.cuh"

typedef dtype_of<REAL>::type real;
#include "inputs.cuh"

typedef dtype_of<Y>::type result;
#if REAL == CUP_F32
typedef float attribute;
#define ATTRIBUTES(c) (c).attributes_f32
#else
typedef double attribute;
#define ATTRIBUTES(c) (c).attributes
#endif

DEVICE real apply(const real *x, const attribute *a);
#ifdef SECOND
DEVICE real apply_second(const real *x, const attribute *a);
#endif

#define INPUT(k) input<k, X##k, NDIM>
#define DECLARE(k) INPUT(k) x##k[COUNT];
#define READ(k) x##k[u].read(c.x[k], c, start + u * (POINTWISE_THREADS * VEC));
#define VALUE(k) x##k[u].value(i),
#define ONE(k) INPUT(k)::one(c.x[k], c, index),

/* COUNT whole units of a thread: all is read before anything is computed. */
template <int COUNT> DEVICE void compute(const pointwise_call &c, unsigned start)
{
    EACH(DECLARE)
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        EACH(READ)
    }
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        real y[VEC];
#ifdef SECOND
        real second[VEC];
#endif
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const real x[] = {EACH(VALUE)};
            y[i] = apply(x, ATTRIBUTES(c));
#ifdef SECOND
            second[i] = apply_second(x, ATTRIBUTES(c));
#endif
        }
        write<result>(c.y, start + u * (POINTWISE_THREADS * VEC), y);
#ifdef SECOND
        write<result>(c.second, start + u * (POINTWISE_THREADS * VEC), second);
#endif
    }
}

/* The same at the end of the result, where units may be missing or cut. */
DEVICE void compute_last(const pointwise_call &c, unsigned start)
{
#pragma unroll 1
    for (int u = 0; u < UNROLL; u++, start += POINTWISE_THREADS * VEC) {
        if (start + VEC <= c.count) {
            compute<1>(c, start);
            continue;
        }
#pragma unroll 1
        for (unsigned index = start; index < c.count; index++) {
            const real x[] = {EACH(ONE)};
            ((result *)c.y)[index] = convert<result>(apply(x, ATTRIBUTES(c)));
#ifdef SECOND
            ((result *)c.second)[index] = convert<result>(apply_second(x, ATTRIBUTES(c)));
#endif
        }
    }
}

/* For sm_120 the compiler spills long units so that more blocks fit, unless one is enough. */
#if VEC >= 16 && __CUDA_ARCH__ >= 1200
#define POINTWISE_BOUNDS POINTWISE_THREADS, 1
#else
#define POINTWISE_BOUNDS POINTWISE_THREADS
#endif

#define POINTWISE(name)                                                                            \
    extern "C" __global__ void __launch_bounds__(POINTWISE_BOUNDS)                                 \
        name(const __grid_constant__ pointwise_call c)                                             \
    {                                                                                              \
        const unsigned piece = POINTWISE_THREADS * UNROLL * VEC;                                   \
        unsigned begin = blockIdx.x * piece, start = begin + threadIdx.x * VEC;                    \
        let_next_kernel_start();                                                                   \
        wait_for_previous_kernel();                                                                \
        if (begin + piece <= c.count)                                                              \
            compute<UNROLL>(c, start);                                                             \
        else                                                                                       \
            compute_last(c, start);                                                                \
    }

#endif
