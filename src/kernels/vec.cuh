/* Vectors of elements, loaded and stored in accesses of up to 16 bytes.
 *
 *     vec<T, N> v = load<N>(p)              also load_once, load_plain
 *     store(p, v)                           also store_once
 *     to_reals(v, r), from_reals<T, N>(r)   between vec<T, N> and real r[N] */
#ifndef CUP_VEC_CUH
#define CUP_VEC_CUH

#include "dtype.cuh"

/* Count elements side by side. The address given to load and store must be a multiple of the vec's
 * alignment. */
template <typename Element, int Count>
struct alignas(sizeof(Element) * Count > 16 ? 16 : sizeof(Element) * Count) vec {
    Element at[Count];
};

template <int Bytes> struct word_of { typedef uint4 type; };
template <> struct word_of<8> { typedef uint2 type; };
template <> struct word_of<4> { typedef uint32_t type; };
template <> struct word_of<2> { typedef uint16_t type; };
template <> struct word_of<1> { typedef uint8_t type; };

template <typename Element, int Count> union vec_words {
    enum {
        whole = sizeof(Element) * Count,
        bytes = whole > 16 ? 16 : whole,
        count = whole / bytes
    };
    typedef typename word_of<bytes>::type word;
    vec<Element, Count> elements;
    word words[count];
};

/* Through the read-only path: for memory that nothing writes while the kernel runs. */
template <int Count, typename Element> DEVICE vec<Element, Count> load(const Element *from)
{
    vec_words<Element, Count> u;
#pragma unroll
    for (int i = 0; i < u.count; i++)
        u.words[i] = __ldg((const typename vec_words<Element, Count>::word *)from + i);
    return u.elements;
}

/* The same for data that is used once: it does not push other data out of the caches. */
template <int Count, typename Element> DEVICE vec<Element, Count> load_once(const Element *from)
{
    vec_words<Element, Count> u;
#pragma unroll
    for (int i = 0; i < u.count; i++)
        u.words[i] = __ldcs((const typename vec_words<Element, Count>::word *)from + i);
    return u.elements;
}

/* For memory that this kernel also writes, or shared memory. */
template <int Count, typename Element> DEVICE vec<Element, Count> load_plain(const Element *from)
{
    vec_words<Element, Count> u;
#pragma unroll
    for (int i = 0; i < u.count; i++)
        u.words[i] = ((const typename vec_words<Element, Count>::word *)from)[i];
    return u.elements;
}

template <typename Element, int Count> DEVICE void store(Element *to, const vec<Element, Count> &v)
{
    vec_words<Element, Count> u;
    u.elements = v;
#pragma unroll
    for (int i = 0; i < u.count; i++)
        ((typename vec_words<Element, Count>::word *)to)[i] = u.words[i];
}

/* For results that nothing reads soon. */
template <typename Element, int Count>
DEVICE void store_once(Element *to, const vec<Element, Count> &v)
{
    vec_words<Element, Count> u;
    u.elements = v;
#pragma unroll
    for (int i = 0; i < u.count; i++)
        __stcs((typename vec_words<Element, Count>::word *)to + i, u.words[i]);
}

template <typename Element, int Count> struct unpacker {
    static __device__ __forceinline__ void run(const vec<Element, Count> &v,
                                               typename real_of<Element>::type (&out)[Count])
    {
#pragma unroll
        for (int i = 0; i < Count; i++)
            out[i] = to_real(v.at[i]);
    }
};
/* Two to a word: left to itself the compiler moves the upper one down before it moves it up. */
template <int Count> struct bf16_unpacker {
    static __device__ __forceinline__ void run(const vec<bf16, Count> &v, float (&out)[Count])
    {
        union {
            vec<bf16, Count> elements;
            uint32_t pairs[Count / 2];
        } u;
        u.elements = v;
#pragma unroll
        for (int i = 0; i < Count / 2; i++) {
            out[2 * i] = __uint_as_float(u.pairs[i] << 16);
            out[2 * i + 1] = __uint_as_float(u.pairs[i] & 0xffff0000u);
        }
    }
};
template <> struct unpacker<bf16, 2> : bf16_unpacker<2> {};
template <> struct unpacker<bf16, 4> : bf16_unpacker<4> {};
template <> struct unpacker<bf16, 8> : bf16_unpacker<8> {};

template <typename Element, int Count>
DEVICE void to_reals(const vec<Element, Count> &v, typename real_of<Element>::type (&out)[Count])
{
    unpacker<Element, Count>::run(v, out);
}

/* Two floats rounded into one word, `low` into its lower half. */
DEVICE uint32_t pack(float low, float high, bf16)
{
#if CUP_HAS_BF16
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return from_real<bf16>(low).bits | (uint32_t)from_real<bf16>(high).bits << 16;
#endif
}

DEVICE uint32_t pack(float low, float high, f16)
{
#if CUP_HAS_BF16
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return from_real<f16>(low).bits | (uint32_t)from_real<f16>(high).bits << 16;
#endif
}

template <typename Element, int Count> struct packer {
    static __device__ __forceinline__ vec<Element, Count>
    run(const typename real_of<Element>::type (&in)[Count])
    {
        vec<Element, Count> v;
#pragma unroll
        for (int i = 0; i < Count; i++)
            v.at[i] = from_real<Element>(in[i]);
        return v;
    }
};
template <typename Element, int Count> struct pair_packer {
    static __device__ __forceinline__ vec<Element, Count> run(const float (&in)[Count])
    {
        union {
            vec<Element, Count> elements;
            uint32_t pairs[Count / 2];
        } u;
#pragma unroll
        for (int i = 0; i < Count / 2; i++)
            u.pairs[i] = pack(in[2 * i], in[2 * i + 1], Element());
        return u.elements;
    }
};
template <> struct packer<bf16, 2> : pair_packer<bf16, 2> {};
template <> struct packer<bf16, 4> : pair_packer<bf16, 4> {};
template <> struct packer<bf16, 8> : pair_packer<bf16, 8> {};
template <> struct packer<f16, 2> : pair_packer<f16, 2> {};
template <> struct packer<f16, 4> : pair_packer<f16, 4> {};
template <> struct packer<f16, 8> : pair_packer<f16, 8> {};

template <typename Element, int Count>
DEVICE vec<Element, Count> from_reals(const typename real_of<Element>::type (&in)[Count])
{
    return packer<Element, Count>::run(in);
}

#endif
