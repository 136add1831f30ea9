/* Elementwise kernels. NAME.cu includes this, says what one element of the result is,
 *
 *     DEVICE real apply(const real *x, const attribute *a)
 *
 * and ends in POINTWISE(name_fwd), which makes the kernel; with SECOND defined, apply_second()
 * makes a second result. A thread takes UNROLL units of VEC neighbouring elements of the result,
 * which lies in row-major order, and reads all it needs before it computes; a unit's neighbours
 * travel in accesses of up to 16 bytes.
 *
 * Grid: pieces of POINTWISE_THREADS * UNROLL * VEC elements. Each input is read once and the
 * result written once. The knobs of an input are packed: dtype | kind << 8 | width << 16, where
 * width is how many neighbours its alignment lets it read at once. */
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

#include "real_math.cuh"
#include "vec.cuh"

typedef dtype_of<REAL>::type real;
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

/* Where the element of input K for element `index` of the result is. */
template <int K> DEVICE int offset_of(const pointwise_call &c, unsigned index)
{
    int offset = 0;
#pragma unroll
    for (int d = 0; d < NDIM - 1; d++) {
        unsigned rest = divided(index, c.dim[d]);
        offset += (int)(index - rest * c.dim[d].size) * c.stride[K][d];
        index = rest;
    }
    return offset + (int)index * c.stride[K][NDIM - 1];
}

/* The elements of input K for one unit. */
template <int K, int Packed> struct input {
    typedef typename dtype_of<Packed & 0xff>::type element;
    static const int kind = Packed >> 8 & 0xff, width = Packed >> 16;
    static const bool single = kind == POINTWISE_SCALAR || kind == POINTWISE_COLUMN;
    element at[single ? 1 : VEC];

    __device__ __forceinline__ void read(const pointwise_call &c, unsigned first)
    {
        const element *from = (const element *)c.x[K];
        if (kind == POINTWISE_GATHER) {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                at[single ? 0 : i] = from[offset_of<K>(c, first + i)];
            return;
        }
        if (kind == POINTWISE_FLAT)
            from += first;
        else if (kind != POINTWISE_SCALAR)
            from += offset_of<K>(c, first);
        if (single) {
            at[0] = *from;
            return;
        }
#pragma unroll
        for (int i = 0; i < VEC; i += width) {
            vec<element, width> piece = load_plain<width>(from + i);
#pragma unroll
            for (int k = 0; k < width; k++)
                at[single ? 0 : i + k] = piece.at[k];
        }
    }

    __device__ __forceinline__ real value(int i) const
    {
        return convert<real>(at[single ? 0 : i]);
    }

    /* One element by itself, for the end of a result that is no whole number of units. */
    static __device__ __forceinline__ real one(const pointwise_call &c, unsigned index)
    {
        const element *from = (const element *)c.x[K];
        int at = kind == POINTWISE_SCALAR ? 0
                 : kind == POINTWISE_FLAT ? (int)index
                                          : offset_of<K>(c, index);
        return convert<real>(from[at]);
    }
};

#define INPUT(k) input<k, X##k>
#ifdef X7
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7)
#define INPUTS 8
#elif defined(X6)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6)
#define INPUTS 7
#elif defined(X5)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5)
#define INPUTS 6
#elif defined(X4)
#define EACH(do) do(0) do(1) do(2) do(3) do(4)
#define INPUTS 5
#elif defined(X3)
#define EACH(do) do(0) do(1) do(2) do(3)
#define INPUTS 4
#elif defined(X2)
#define EACH(do) do(0) do(1) do(2)
#define INPUTS 3
#elif defined(X1)
#define EACH(do) do(0) do(1)
#define INPUTS 2
#else
#define EACH(do) do(0)
#define INPUTS 1
#endif

/* Rounding a unit of results; pairs at once where the real type is the one its dtype has. */
template <typename To, typename From> struct rounding {
    static __device__ __forceinline__ vec<To, VEC> run(const real (&in)[VEC])
    {
        vec<To, VEC> out;
#pragma unroll
        for (int i = 0; i < VEC; i++)
            out.at[i] = convert<To>(in[i]);
        return out;
    }
};
template <typename To> struct rounding<To, float> {
    static __device__ __forceinline__ vec<To, VEC> run(const float (&in)[VEC])
    {
        return from_reals<To, VEC>(in);
    }
};
template <typename To> struct real_if_float { typedef void type; };
template <> struct real_if_float<bf16> { typedef real type; };
template <> struct real_if_float<f16> { typedef real type; };

DEVICE void write(void *to, unsigned first, const real (&values)[VEC])
{
    store((result *)to + first,
          rounding<result, typename real_if_float<result>::type>::run(values));
}

#define DECLARE(k) INPUT(k) x##k[COUNT];
#define READ(k) x##k[u].read(c, start + u * (POINTWISE_THREADS * VEC));
#define VALUE(k) x##k[u].value(i),
#define ONE(k) INPUT(k)::one(c, index),

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
        write(c.y, start + u * (POINTWISE_THREADS * VEC), y);
#ifdef SECOND
        write(c.second, start + u * (POINTWISE_THREADS * VEC), second);
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

#define POINTWISE(name)                                                                            \
    extern "C" __global__ void __launch_bounds__(POINTWISE_THREADS)                                \
        name(const __grid_constant__ pointwise_call c)                                             \
    {                                                                                              \
        const unsigned piece = POINTWISE_THREADS * UNROLL * VEC;                                   \
        unsigned begin = blockIdx.x * piece, start = begin + threadIdx.x * VEC;                    \
        if (begin + piece <= c.count)                                                              \
            compute<UNROLL>(c, start);                                                             \
        else                                                                                       \
            compute_last(c, start);                                                                \
    }

#endif
