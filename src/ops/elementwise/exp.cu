/* y = e^x. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return exp_of(x[0]);
}

POINTWISE(exp_fwd)
