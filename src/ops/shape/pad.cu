/* x in a larger y, with a value around it, or with WRAP over and over again; both are row-major.
 * With ROWS a word of y is a word of x or none of it. Grid: a thread for each word. Bytes: y once,
 * and x once, from the caches when it is repeated. */
#include "pad_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), VEC, NDIM, WRAP, ROWS, WIDE (2^31 elements or more). */

typedef word_of<SIZE>::type element;

#if WIDE
typedef int64_t place_type;
DEVICE int64_t quotient(int64_t n, int64_t size, const divisor &small)
{
    (void)small;
    return n / size;
}
#else
typedef int place_type;
DEVICE int quotient(int n, int64_t size, const divisor &small)
{
    (void)size;
    return (int)divided((unsigned)n, small);
}
#endif

/* Where in x a place of y lies; below 0 or beyond its size when nowhere. */
DEVICE place_type source(const pad_dim &d, place_type place)
{
    if (!WRAP)
        return place - (place_type)d.before;
    return place - quotient(place, d.from, d.from_small) * (place_type)d.from;
}

DEVICE element value_of(const pad_call &c)
{
#if SIZE == 8
    element e;
    e.x = (uint32_t)c.value;
    e.y = (uint32_t)(c.value >> 32);
    return e;
#else
    return (element)c.value;
#endif
}

extern "C" __global__ void __launch_bounds__(PAD_THREADS)
    pad_fwd(const __grid_constant__ pad_call c)
{
    int64_t word = (int64_t)blockIdx.x * PAD_THREADS + threadIdx.x;
    if (word >= c.words)
        return;
    place_type index = (place_type)word, first = 0;
    int64_t line = 0;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < NDIM; d++) {
        const pad_dim &dim = c.dim[d];
        place_type words = (place_type)(d ? dim.size : dim.size / VEC);
        place_type rest = d == NDIM - 1 ? 0 : quotient(index, words, dim.size_small);
        place_type place = index - rest * words;
        index = rest;
        if (d == 0) {
            first = place * VEC;
            continue;
        }
        place_type from = source(dim, place);
        inside &= from >= 0 && from < (place_type)dim.from;
        line += from * (int64_t)dim.step;
    }
    const element *x = (const element *)c.x + line;
    vec<element, VEC> out;
#if ROWS
    place_type from = source(c.dim[0], first);
    if (inside && from >= 0 && from < (place_type)c.dim[0].from) {
        out = load<VEC>(x + from);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            out.at[i] = value_of(c);
    }
#else
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        place_type from = source(c.dim[0], first + i);
        bool there = inside && from >= 0 && from < (place_type)c.dim[0].from;
        out.at[i] = there ? __ldg(x + from) : value_of(c);
    }
#endif
    store((element *)c.y + word * VEC, out);
}
