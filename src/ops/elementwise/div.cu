/* y = a / b; with GRAD, b, y and dy give -dy y / b. Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return -x[2] * quotient_of(x[1], x[0]);
#else
    return quotient_of(x[0], x[1]);
#endif
}

#ifdef GRAD
POINTWISE(div_bwd)
#else
POINTWISE(div_fwd)
#endif
