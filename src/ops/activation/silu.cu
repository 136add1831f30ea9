/* y = x / (1 + e^-x); with GRAD, x and dy give dy times the derivative. Elementwise: grid and
 * block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * silu_slope_of(x[0]);
#else
    return silu_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(silu_bwd)
#else
POINTWISE(silu_fwd)
#endif
