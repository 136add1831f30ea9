/* y = max(x, 0), NaN for NaN; with GRAD, y and dy give dy where y > 0. Elementwise: grid and
 * block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[0] > 0 ? x[1] : (real)0;
#else
    return x[0] < 0 ? (real)0 : x[0];
#endif
}

#ifdef GRAD
POINTWISE(relu_bwd)
#else
POINTWISE(relu_fwd)
#endif
