/* y = 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the sigmoid does not
 * cancel for negative u. With GRAD, x and dy give dy times the derivative. Elementwise: grid and
 * block as kernels/pointwise.cuh says; about 12 operations an element. */
#include "pointwise.cuh"

#define SQRT_2_PI ((real)0.79788456080286535588)
#define CUBIC ((real)0.044715)

DEVICE real apply(const real *x, const attribute *)
{
    real v = x[0], s = sigmoid_of(2 * SQRT_2_PI * v * (1 + CUBIC * v * v));
#ifdef GRAD
    real du = SQRT_2_PI * (1 + 3 * CUBIC * v * v);
    return x[1] * (s + 2 * v * s * (1 - s) * du);
#else
    return v * s;
#endif
}

#ifdef GRAD
POINTWISE(gelu_bwd)
#else
POINTWISE(gelu_fwd)
#endif
