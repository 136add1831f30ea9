/* y = 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3). With GRAD, x and dy give dy times the
 * derivative. Elementwise: grid and block as kernels/pointwise.cuh says; about 12 operations an
 * element. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * gelu_slope_of(x[0]);
#else
    return gelu_of(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(gelu_bwd)
#else
POINTWISE(gelu_fwd)
#endif
