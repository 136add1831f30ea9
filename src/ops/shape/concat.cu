/* Moves the rows of several tensors to their places in the rows of one. Grid: for each part a block
 * for every 256 * UNROLL words of it. Bytes: every element read and written once. */
#include "concat_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), VEC, UNROLL. */

typedef word_of<SIZE>::type element;

/* The last part whose blocks begin at this one or before. */
DEVICE int part_of_block(const concat_call &c)
{
    int low = 0, high = c.parts;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (c.part[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(CONCAT_THREADS)
    concat_fwd(const __grid_constant__ concat_call c)
{
    const concat_part &p = c.part[part_of_block(c)];
    unsigned first = (blockIdx.x - p.first_block) * (CONCAT_THREADS * UNROLL) + threadIdx.x;
    const element *x = (const element *)p.x;
    element *y = (element *)c.y + p.before * VEC;
    vec<element, VEC> moved[UNROLL];
    int64_t to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        unsigned index = first + u * CONCAT_THREADS;
        if (index >= p.count)
            break;
        unsigned row = divided(index, p.length), column = index - row * p.length.size;
        moved[u] = load<VEC>(x + (row * p.x_row + column) * VEC);
        to[u] = (row * c.y_row + column) * VEC;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * CONCAT_THREADS < p.count)
            store(y + to[u], moved[u]);
}
