/* y = square root of x; with GRAD, y and dy give dy / (2 y). Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return quotient_of(x[1], 2 * x[0]);
#else
    return sqrt_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(sqrt_bwd)
#else
POINTWISE(sqrt_fwd)
#endif
