/* y = -x. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return -x[0];
}

POINTWISE(neg_fwd)
