/* y = gate sigmoid(gate) up; with GRAD, gate, up and dy give both gradients in one pass.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#ifdef GRAD
#define SECOND
#endif
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
    real s = sigmoid_of(x[0]);
#ifdef GRAD
    return x[2] * x[1] * s * (1 + x[0] * (1 - s));
#else
    return x[0] * s * x[1];
#endif
}

#ifdef GRAD
DEVICE real apply_second(const real *x, const attribute *)
{
    return x[2] * x[0] * sigmoid_of(x[0]);
}

POINTWISE(swiglu_bwd)
#else
POINTWISE(swiglu_fwd)
#endif
