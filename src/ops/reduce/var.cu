/* (x, mean, dy) -> a (x - mean) dy. Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *a)
{
    return a[0] * (x[0] - x[1]) * x[2];
}

POINTWISE(var_bwd)
