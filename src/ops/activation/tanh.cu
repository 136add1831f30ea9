/* y = tanh x; with GRAD, y and dy give dy (1 - y^2). Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * (1 - x[0] * x[0]);
#else
    return tanh_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(tanh_bwd)
#else
POINTWISE(tanh_fwd)
#endif
