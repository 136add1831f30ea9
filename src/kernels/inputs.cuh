/* What elementwise kernels read and write: units of VEC neighbours. The including file sets VEC and
 * `real`; the knobs X0, X1, .. describe the inputs, packed: dtype | kind << 8 | width << 16, where
 * width is how many neighbours its alignment lets an input read at once. A `space` has the
 * dimensions that are gone through, `dim`, and the strides of each input in them, `stride`. */
#ifndef CUP_INPUTS_CUH
#define CUP_INPUTS_CUH

#include "pointwise_call.cuh"
#include "vec.cuh"

/* Where the element of input K for element `index` of the space is. */
template <int K, int Ndim, typename Space> DEVICE int offset_of(const Space &s, unsigned index)
{
    int offset = 0;
#pragma unroll
    for (int d = 0; d < Ndim - 1; d++) {
        unsigned rest = divided(index, s.dim[d]);
        offset += (int)(index - rest * s.dim[d].size) * s.stride[K][d];
        index = rest;
    }
    return offset + (int)index * s.stride[K][Ndim - 1];
}

/* The elements of input K for one unit. */
template <int K, int Packed, int Ndim> struct input {
    typedef typename dtype_of<Packed & 0xff>::type element;
    static const int kind = Packed >> 8 & 0xff, width = Packed >> 16;
    static const bool single = kind == POINTWISE_SCALAR || kind == POINTWISE_COLUMN;
    element at[single ? 1 : VEC];

    template <typename Space>
    __device__ __forceinline__ void read(const void *base, const Space &s, unsigned first)
    {
        const element *from = (const element *)base;
        if (kind == POINTWISE_GATHER) {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                at[single ? 0 : i] = from[offset_of<K, Ndim>(s, first + i)];
            return;
        }
        if (kind == POINTWISE_FLAT)
            from += first;
        else if (kind != POINTWISE_SCALAR)
            from += offset_of<K, Ndim>(s, first);
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
    template <typename Space>
    static __device__ __forceinline__ real one(const void *base, const Space &s, unsigned index)
    {
        const element *from = (const element *)base;
        int at = kind == POINTWISE_SCALAR ? 0
                 : kind == POINTWISE_FLAT ? (int)index
                                          : offset_of<K, Ndim>(s, index);
        return convert<real>(from[at]);
    }
};

#ifdef X14
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12)  \
    do(13) do(14)
#elif defined(X13)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12)  \
    do(13)
#elif defined(X12)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12)
#elif defined(X11)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11)
#elif defined(X10)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10)
#elif defined(X9)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9)
#elif defined(X8)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8)
#elif defined(X7)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7)
#elif defined(X6)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6)
#elif defined(X5)
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5)
#elif defined(X4)
#define EACH(do) do(0) do(1) do(2) do(3) do(4)
#elif defined(X3)
#define EACH(do) do(0) do(1) do(2) do(3)
#elif defined(X2)
#define EACH(do) do(0) do(1) do(2)
#elif defined(X1)
#define EACH(do) do(0) do(1)
#else
#define EACH(do) do(0)
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

template <typename Result> DEVICE void write(void *to, unsigned first, const real (&values)[VEC])
{
    store((Result *)to + first,
          rounding<Result, typename real_if_float<Result>::type>::run(values));
}

#endif
