/* y = max(a, b), NaN when one is; with GRAD, a, b and dy give dy where a > b, half of it where
 * they are equal. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[0] > x[1] ? x[2] : x[0] == x[1] ? (real)0.5 * x[2] : (real)0;
#else
    return x[0] > x[1] || x[0] != x[0] ? x[0] : x[1];
#endif
}

#ifdef GRAD
POINTWISE(maximum_bwd)
#else
POINTWISE(maximum_fwd)
#endif
