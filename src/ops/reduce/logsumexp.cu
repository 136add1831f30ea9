/* (x, y, dy) -> dy exp(x - y). Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    return x[2] * exp_of(x[0] - x[1]);
}

POINTWISE(logsumexp_bwd)
