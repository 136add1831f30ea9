/* y = |x|; with GRAD, x and dy give dy times the sign of x. Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : (real)0;
#else
    return x[0] < 0 ? -x[0] : x[0] + 0;
#endif
}

#ifdef GRAD
POINTWISE(abs_bwd)
#else
POINTWISE(abs_fwd)
#endif
