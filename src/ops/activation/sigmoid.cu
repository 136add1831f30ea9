/* y = 1 / (1 + e^-x); with GRAD, y and dy give dy y (1 - y). Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * x[0] * (1 - x[0]);
#else
    return sigmoid_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(sigmoid_bwd)
#else
POINTWISE(sigmoid_fwd)
#endif
