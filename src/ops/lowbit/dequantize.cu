/* y = x scale, x codes of 8 bits in rows of `columns`, the scale of row i and column k at
 * scale[(i >> shift) line + k / 128 block]. A thread makes VEC elements of one row; grid.x counts
 * 256 threads. Memory bound. */
#include "product_call.cuh"
#include "vec.cuh"

/* Knobs: Y_T, VEC. */

typedef dtype_of<Y_T>::type result;

extern "C" __global__ void __launch_bounds__(256)
    dequantize_fwd(const T *x, result *y, const __grid_constant__ product_scale scale,
                   long long count, long long columns)
{
    long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (i >= count)
        return;
    long long row = i / columns, column = i - row * columns;
    float s = __ldg(scale.data + (row >> scale.shift) * scale.line +
                    column / PRODUCT_SCALE_DEPTH * scale.k);
    vec<T, VEC> v = load<VEC>(x + i);
    vec<result, VEC> out;
#pragma unroll
    for (int j = 0; j < VEC; j++)
        out.at[j] = convert<result>((float)to_real(v.at[j]) * s);
    store(y + i, out);
}
