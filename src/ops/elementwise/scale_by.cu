/* x *= factor, in place, where the factor is in device memory; nothing is touched when it is 1.
 * Grid: blocks of 256 threads, 16 a multiprocessor at most, so that finding a 1 takes no time.
 * Bytes: x read and written. */
#include "vec.cuh"

/* Knobs: VEC, CUP_FACTOR. */

extern "C" __global__ void __launch_bounds__(256)
scale_by(T *x, const dtype_of<CUP_FACTOR>::type *factor, int64_t count)
{
    int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) * VEC;
    real by = (real)to_real(*factor);
    if (by == 1)
        return;
    for (; at < count; at += (int64_t)gridDim.x * 256 * VEC) {
        real r[VEC];
        to_reals(load_plain<VEC>((const T *)x + at), r);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            r[k] *= by;
        store(x + at, from_reals<T, VEC>(r));
    }
}
