/* y = ln x. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return log_of(x[0]);
}

POINTWISE(log_fwd)
