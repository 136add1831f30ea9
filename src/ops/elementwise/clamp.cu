/* y = min(max(x, low), high), NaN for NaN; with GRAD, x and dy give dy where x was not moved.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *a)
{
#ifdef GRAD
    return x[0] >= a[0] && x[0] <= a[1] ? x[1] : (real)0;
#else
    return x[0] < a[0] ? a[0] : x[0] > a[1] ? a[1] : x[0];
#endif
}

#ifdef GRAD
POINTWISE(clamp_bwd)
#else
POINTWISE(clamp_fwd)
#endif
