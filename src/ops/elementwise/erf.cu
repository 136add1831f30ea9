/* y = the error function of x; with GRAD, x and dy give 2 dy e^(-x^2) / sqrt(pi). Elementwise:
 * grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[1] * (real)1.12837916709551257390 * exp_of(-x[0] * x[0]);
#else
    return erf(x[0]);
#endif
}

#ifdef GRAD
POINTWISE(erf_bwd)
#else
POINTWISE(erf_fwd)
#endif
