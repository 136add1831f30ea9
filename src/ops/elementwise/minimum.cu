/* y = min(a, b), NaN when one is. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return x[0] < x[1] || x[0] != x[0] ? x[0] : x[1];
}

POINTWISE(minimum_fwd)
