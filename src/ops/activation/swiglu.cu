/* y = gate sigmoid(gate) up; with GRAD, gate, up and dy give both gradients in one pass.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#ifdef GRAD
#define SECOND
#endif
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    return x[2] * x[1] * silu_slope_of(x[0]);
#else
    return silu_of(x[0]) * x[1];
#endif
}

#ifdef GRAD
DEVICE real apply_second(const real *x, const attribute *)
{
    return x[2] * silu_of(x[0]);
}

POINTWISE(swiglu_bwd)
#else
POINTWISE(swiglu_fwd)
#endif
