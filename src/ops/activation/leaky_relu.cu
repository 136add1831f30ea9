/* y = x above 0, else slope x; with GRAD, x and dy give dy or slope dy. Elementwise: grid and
 * block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *a)
{
#ifdef GRAD
    return x[0] > 0 ? x[1] : a[0] * x[1];
#else
    return x[0] > 0 ? x[0] : a[0] * x[0];
#endif
}

#ifdef GRAD
POINTWISE(leaky_relu_bwd)
#else
POINTWISE(leaky_relu_fwd)
#endif
