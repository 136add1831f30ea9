/* What elementwise kernels read and write: units of VEC neighbours. The including file sets VEC and
 * `real`; the knobs X0, X1, .. describe the inputs, packed: dtype | kind << 8 | width << 16, where
 * width is how many neighbours its alignment lets an input read at once, or 0 where a unit begins
 * anywhere and is cut out of whole lines of 16 bytes. A `space` has the dimensions that are gone
 * through, `dim`, and the strides of each input in them, `stride`. */
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

/* Count words that begin at any element of Size bytes, cut out of the lines of 16 bytes that they
 * touch. All is read without a branch, so that other reads need not wait: where the last line has
 * nothing of them, the one before is read again. */
template <int Count, int Size> DEVICE void cut_out(const void *from, uint32_t (&out)[Count])
{
    unsigned shift = (unsigned)(uint64_t)from % 16;
    const uint4 *lines = (const uint4 *)((const char *)from - shift);
    uint32_t w[Count + 4];
#pragma unroll
    for (int i = 0; i <= Count / 4; i++) {
        uint4 line = lines[i < Count / 4 || shift ? i : i - 1];
        w[i * 4] = line.x;
        w[i * 4 + 1] = line.y;
        w[i * 4 + 2] = line.z;
        w[i * 4 + 3] = line.w;
    }
#pragma unroll
    for (int i = 0; i < Count + 2; i++)
        w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < Count + 1; i++)
        w[i] = Size < 8 && shift & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < Count; i++)
        out[i] = Size < 4 ? __funnelshift_r(w[i], w[i + 1], shift % 4 * 8) : w[i];
}

/* The elements of input K for one unit. */
template <int K, int Packed, int Ndim> struct input {
    typedef typename dtype_of<Packed & 0xff>::type element;
    static const int kind = Packed >> 8 & 0xff, width = Packed >> 16;
    static const bool single = kind == POINTWISE_SCALAR || kind == POINTWISE_COLUMN;
    static const int step = width ? width : 1;
    static const int whole = width ? 4 : VEC * (int)sizeof(element) / 4; /* words of a unit */
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
        if (width == 0) {
            union {
                uint32_t words[whole];
                element elements[whole * 4 / sizeof(element)];
            } u;
            cut_out<whole, sizeof(element)>(from, u.words);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                at[single ? 0 : i] = u.elements[i];
            return;
        }
#pragma unroll
        for (int i = 0; i < VEC; i += step) {
            vec<element, step> piece = load_plain<step>(from + i);
#pragma unroll
            for (int k = 0; k < step; k++)
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
