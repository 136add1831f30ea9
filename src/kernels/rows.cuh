/* Rows shared out among groups of threads. The knob GROUP is the threads of one group, a power of
 * two; a block of THREADS has THREADS / GROUP of them. A thread takes PIECES vectors of VEC
 * elements of a row, GROUP vectors apart, SPAN elements a group in all; a row longer than that is
 * taken in several spans.
 *
 *     group_reduce<Slot>(x, op)    all threads of the block must call; calls that follow each
 *                                  other without a barrier between must alternate Slot 0 and 1 */
#ifndef CUP_ROWS_CUH
#define CUP_ROWS_CUH

#include "reduce.cuh"

#ifndef GROUP
#define GROUP 32
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef PIECES
#define PIECES 2
#endif
#define GROUPS (THREADS / GROUP)
#define SPAN (GROUP * PIECES * VEC)

/* A barrier for some of the block's warps. */
DEVICE void group_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

template <int Slot, typename Value, typename Op> DEVICE Value group_reduce(Value value, Op op)
{
#pragma unroll
    for (int mask = (GROUP < 32 ? GROUP : 32) / 2; mask > 0; mask /= 2)
        value = op(value, shuffle_xor(value, mask));
    if (GROUP <= 32)
        return value;
    const int warps = GROUP < 32 ? 1 : GROUP / 32;
    __shared__ alignas(alignof(Value)) unsigned char memory[THREADS / 32 * sizeof(Value)];
    Value *partial = (Value *)memory;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (lane == 0)
        partial[warp] = value;
    if (GROUPS == 1)
        __syncthreads();
    else
        group_barrier(1 + warp / warps, GROUP);
    value = partial[warp / warps * warps + lane % warps];
#pragma unroll
    for (int mask = warps / 2; mask > 0; mask /= 2)
        value = op(value, shuffle_xor(value, mask));
    return value;
}

/* Two sums at once. */
template <typename Value> struct two {
    Value a, b;
};
struct two_sums {
    template <typename Value>
    __device__ __forceinline__ two<Value> operator()(two<Value> x, two<Value> y) const
    {
        return {x.a + y.a, x.b + y.b};
    }
};

/* Moments of a row are taken around a pivot, its first element, or around 0 for 16-bit elements;
 * and once more around the mean where that is FAR away: squared, in variances. The variance is a
 * difference of two numbers FAR + 1 and FAR times as large, of which each is a few roundings off,
 * and its statistics are f32 whatever the elements are. */
#ifndef PIVOT
#define PIVOT (sizeof(T) > 2)
#endif
#define FAR 8

/* Groups of one warp go on together. */
DEVICE bool any_of_warp(bool x)
{
    return GROUP < 32 ? __any_sync(0xffffffffu, x) : x;
}

/* Where piece `p` of this thread begins in a span. */
DEVICE int piece_at(int p)
{
    return (p * GROUP + (int)threadIdx.x % GROUP) * VEC;
}

template <typename A, typename B> struct same_type { enum { is = 0 }; };
template <typename A> struct same_type<A, A> { enum { is = 1 }; };

/* A kernel that begins while the one in front of it writes what it reads must not read through the
 * read-only path, which the compiler may ask before the wait. */
#ifndef DEPENDENT
#define DEPENDENT 0
#endif

/* Count elements as whole words: left to itself the compiler gives each 16-bit element a register
 * of its own, or converts all of them before a loop. */
template <typename Element, int Count> struct packed {
    enum { count = (sizeof(Element) * Count + 3) / 4 };
    union view {
        vec<Element, Count> elements;
        uint32_t words[count];
        __device__ __forceinline__ view() {}
    };
    uint32_t words[count];

    __device__ __forceinline__ void read(const Element *from)
    {
        view v;
        v.elements = DEPENDENT ? load_plain<Count>(from) : load<Count>(from);
#pragma unroll
        for (int i = 0; i < count; i++) {
            words[i] = v.words[i];
            asm volatile("" : "+r"(words[i]));
        }
    }

    __device__ __forceinline__ void unpack(real (&out)[Count]) const
    {
        uint32_t w[count];
#pragma unroll
        for (int i = 0; i < count; i++) {
            w[i] = words[i];
            asm volatile("" : "+r"(w[i]));
        }
        if (same_type<Element, bf16>::is && Count % 2 == 0) {
#pragma unroll
            for (int k = 0; k < Count; k++)
                out[k] = __uint_as_float(k % 2 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16);
            return;
        }
        view v;
#pragma unroll
        for (int i = 0; i < count; i++)
            v.words[i] = w[i];
#pragma unroll
        for (int k = 0; k < Count; k++)
            out[k] = convert<real>(v.elements.at[k]);
    }

    __device__ __forceinline__ void put(const vec<Element, Count> &elements)
    {
        view v;
        v.elements = elements;
#pragma unroll
        for (int i = 0; i < count; i++)
            words[i] = v.words[i];
    }

    __device__ __forceinline__ void set(real value)
    {
        vec<Element, Count> v;
#pragma unroll
        for (int k = 0; k < Count; k++)
            v.at[k] = convert<Element>(value);
        put(v);
    }

    /* Count elements of two that follow each other, from number `by` of the first on. */
    __device__ __forceinline__ void join(const packed &first, const packed &second, int by)
    {
        uint32_t w[2 * count];
        int bytes = by * (int)sizeof(Element), step = bytes / 4;
#pragma unroll
        for (int i = 0; i < count; i++) {
            w[i] = first.words[i];
            w[count + i] = second.words[i];
        }
#pragma unroll
        for (int move = count / 2; move > 0; move /= 2)
#pragma unroll
            for (int i = 0; i < 2 * count - move; i++)
                w[i] = step & move ? w[i + move] : w[i];
#pragma unroll
        for (int i = 0; i < count; i++)
            words[i] = bytes % 4 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    }
};

/* Multiplies by gamma and adds beta, from `at` on, where there are such. */
template <typename Param>
DEVICE void scale_by(real (&v)[VEC], const Param *gamma, const Param *beta, int at)
{
    if (gamma) {
        vec<Param, VEC> g = load<VEC>(gamma + at);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] *= convert<real>(g.at[k]);
    }
    if (beta) {
        vec<Param, VEC> b = load<VEC>(beta + at);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] += convert<real>(b.at[k]);
    }
}

#endif
