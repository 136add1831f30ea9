/* y = ln(1 + e^x); with GRAD, x and dy give dy / (1 + e^-x). Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * sigmoid_of(x[0]);
#else
    return softplus_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(softplus_bwd)
#else
POINTWISE(softplus_fwd)
#endif
