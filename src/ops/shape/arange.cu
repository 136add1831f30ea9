/* y[i] = start + i step, in double and rounded once; whole numbers are exact in it. Grid: a thread
 * for VEC elements, and one for the rest. Bytes: y once. */
#include "arange_call.cuh"
#include "vec.cuh"

/* A knob: VEC. */

extern "C" __global__ void __launch_bounds__(ARANGE_THREADS)
    arange_fwd(const __grid_constant__ arange_call c)
{
    int64_t begin = ((int64_t)blockIdx.x * ARANGE_THREADS + threadIdx.x) * VEC;
    T *y = (T *)c.y + begin;
    vec<T, VEC> out;
#pragma unroll
    for (int i = 0; i < VEC; i++) /* a fused multiply-add would round otherwise than the host */
        out.at[i] = convert<T>(__dadd_rn(c.start, __dmul_rn((double)(begin + i), c.step)));
    if (begin + VEC <= c.count) {
        store(y, out);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (begin + i < c.count)
            y[i] = out.at[i];
}
