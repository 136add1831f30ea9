/* Matrices with zeros above a diagonal, or with UPPER below it; x and y are row-major. Elements
 * that become zeros are not read where a whole vector does. Grid: a thread for VEC elements, and
 * one for the rest. Bytes: y once, x where it is kept. */
#include "diagonal.cuh"

/* A knob: UPPER. */

DEVICE bool keeps(const diagonal_call &c, const position &p)
{
    int64_t off = p.column - p.row;
    return UPPER ? off >= c.diagonal : off <= c.diagonal;
}

extern "C" __global__ void __launch_bounds__(DIAGONAL_THREADS)
    triangle_fwd(const __grid_constant__ diagonal_call c)
{
    int64_t begin = ((int64_t)blockIdx.x * DIAGONAL_THREADS + threadIdx.x) * VEC;
    if (begin >= c.count)
        return;
    const element *x = (const element *)c.x + begin;
    position p = position_of(c, begin);
    bool kept[VEC], any = false;
    vec<element, VEC> v = {};
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        kept[i] = begin + i < c.count && keeps(c, p);
        any |= kept[i];
        advance(c, &p);
    }
    if (any && begin + VEC <= c.count)
        v = load<VEC>(x);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        if (!kept[i])
            v.at[i] = element();
        else if (begin + VEC > c.count)
            v.at[i] = x[i];
    }
    store_up_to(c, begin, v);
}
