/* y = x above 0, else alpha (e^x - 1); with GRAD, x and dy give dy times the derivative.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *a)
{
#ifdef GRAD
    return x[0] > 0 ? x[1] : x[1] * a[0] * exp_of(x[0]);
#else
    return x[0] > 0 ? x[0] : a[0] * expm1(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(elu_bwd)
#else
POINTWISE(elu_fwd)
#endif
