/* y = a + weight (b - a), from the nearer end. Elementwise: grid and block as kernels/pointwise.cuh
 * says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *a)
{
    real apart = x[1] - x[0];
    return a[0] < (attribute)0.5 ? x[0] + a[0] * apart : x[1] - (1 - a[0]) * apart;
}

POINTWISE(lerp_fwd)
