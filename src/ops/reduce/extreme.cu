/* 1 where x equals the extreme y, else 0; with GRAD, (x, y, dy, n) give dy / n where x equals y.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[0] == x[1] ? x[2] / x[3] : (real)0;
#else
    return x[0] == x[1] ? (real)1 : (real)0;
#endif
}

#ifdef GRAD
POINTWISE(extreme_bwd)
#else
POINTWISE(extreme_mask)
#endif
