/* y = x min(max(x + 3, 0), 6) / 6; with GRAD, x and dy give dy times the derivative. Elementwise:
 * grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    real part = x[0] <= -3 ? (real)0 : x[0] >= 3 ? (real)1 : (2 * x[0] + 3) * (real)(1.0 / 6);
    return x[1] * part;
#else
    real part = x[0] + 3;
    part = part < 0 ? (real)0 : part > 6 ? (real)6 : part;
    return x[0] * part * (real)(1.0 / 6);
#endif
}

#ifdef GRAD
POINTWISE(hardswish_bwd)
#else
POINTWISE(hardswish_fwd)
#endif
