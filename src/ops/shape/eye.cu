/* A matrix with ones on a diagonal and zeros elsewhere. Grid: a thread for VEC elements, and one
 * for the rest. Bytes: y once. */
#include "diagonal.cuh"

extern "C" __global__ void __launch_bounds__(DIAGONAL_THREADS)
    eye_fwd(const __grid_constant__ diagonal_call c)
{
    int64_t begin = ((int64_t)blockIdx.x * DIAGONAL_THREADS + threadIdx.x) * VEC;
    if (begin >= c.count)
        return;
    position p = position_of(c, begin);
    vec<element, VEC> out;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        bool one = p.column - p.row == c.diagonal;
#if SIZE == 8
        out.at[i].x = one ? (uint32_t)c.one : 0;
        out.at[i].y = one ? (uint32_t)(c.one >> 32) : 0;
#else
        out.at[i] = one ? (element)c.one : (element)0;
#endif
        advance(c, &p);
    }
    store_up_to(c, begin, out);
}
