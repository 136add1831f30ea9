/* (x, y, dy) -> dy x / y, and 0 where the norm y is 0. Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return x[1] > 0 ? x[2] * (x[0] / x[1]) : (real)0;
}

POINTWISE(norm_bwd)
