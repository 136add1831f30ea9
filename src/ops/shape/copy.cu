/* Moves words between strided places: VEC neighbouring elements of y, which are neighbours in x as
 * well or, with SPREAD, x_inner apart. Grid: pieces of 256 * UNROLL words. */
#include "copy_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), VEC, SPREAD, NDIM, UNROLL. */

typedef word_of<SIZE>::type element;

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    copy_fwd(const __grid_constant__ words_call c)
{
    unsigned start = blockIdx.x * (COPY_THREADS * UNROLL) + threadIdx.x;
    vec<element, VEC> moved[UNROLL];
    element *to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        unsigned index = start + u * COPY_THREADS;
        int from = 0, at = 0;
        to[u] = 0;
        if (index >= c.count)
            continue;
#pragma unroll
        for (int d = 0; d < NDIM; d++) {
            unsigned rest = d == NDIM - 1 ? 0 : divided(index, c.dim[d]);
            int place = (int)(index - rest * c.dim[d].size);
            from += place * c.x_stride[d];
            at += place * c.y_stride[d];
            index = rest;
        }
        const element *x = (const element *)c.x + from;
        to[u] = (element *)c.y + at;
#if SPREAD
#pragma unroll
        for (int i = 0; i < VEC; i++)
            moved[u].at[i] = __ldg(x + i * c.x_inner);
#else
        moved[u] = load<VEC>(x);
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (to[u])
            store(to[u], moved[u]);
}
