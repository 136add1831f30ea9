/* Transposes matrices with few columns, SMALL, that lie dense on one side: in x, or with SPREAD
 * in y, the SMALL elements of a row are neighbours and rows follow each other; on the other side
 * neighbouring rows are neighbours. A thread moves VEC rows in registers; all accesses are of VEC
 * elements. Grid: a thread for VEC rows, then matrices. Bytes: every element read and written
 * once. */
#include "copy_call.cuh"
#include "vec.cuh"

#ifndef SIZE
#define SIZE 4 /* bytes of an element */
#endif
#ifndef SMALL
#define SMALL 3
#endif
#ifndef VEC
#define VEC (16 / SIZE)
#endif
#ifndef SPREAD
#define SPREAD 0
#endif

typedef word_of<SIZE>::type element;

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    thin_fwd(const __grid_constant__ tiles_call c)
{
    unsigned index = blockIdx.x * COPY_THREADS + threadIdx.x;
    if (index >= c.rows)
        return;
    unsigned rest = divided(index, c.across);
    long long first = (long long)(index - rest * c.across.size) * VEC;
    const element *x = (const element *)c.x + first * (SPREAD ? 1 : SMALL);
    element *y = (element *)c.y + first * (SPREAD ? SMALL : 1);
#pragma unroll 1
    for (int d = 0; d < COPY_DIMS && rest; d++) {
        unsigned next = divided(rest, c.dim[d]), place = rest - next * c.dim[d].size;
        x += place * c.x_stride[d];
        y += place * c.y_stride[d];
        rest = next;
    }
    element held[SMALL * VEC];
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        vec<element, VEC> v = load<VEC>(x + (SPREAD ? i * c.x_row : (long long)i * VEC));
#pragma unroll
        for (int k = 0; k < VEC; k++)
            held[i * VEC + k] = v.at[k];
    }
#pragma unroll
    for (int i = 0; i < SMALL; i++) {
        vec<element, VEC> v;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v.at[k] = SPREAD ? held[(i * VEC + k) % SMALL * VEC + (i * VEC + k) / SMALL]
                             : held[k * SMALL + i];
        store(y + (SPREAD ? (long long)i * VEC : i * c.y_column), v);
    }
}
