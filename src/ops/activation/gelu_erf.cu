/* y = x P(x), P the normal distribution function; with GRAD, x and dy give dy (P(x) + x P'(x)).
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    real density = (real)0.39894228040143267794 * exp_of((real)-0.5 * x[0] * x[0]);
    return x[1] * (normal_below(x[0]) + x[0] * density);
#else
    return x[0] * normal_below(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(gelu_erf_bwd)
#else
POINTWISE(gelu_erf_fwd)
#endif
