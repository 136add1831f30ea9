/* y = x tanh(ln(1 + e^x)); with GRAD, x and dy give dy times the derivative. With w = e^x and n =
 * w (w + 2) the tanh is n / (n + 2). Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef GRAD
    if (x[0] > 20)
        return x[1];
    real w = exp_of(x[0]), n = w * (w + 2);
    real slope = quotient_of(4 * w * (w + 1), (n + 2) * (n + 2));
    return x[1] * (quotient_of(n, n + 2) + x[0] * slope);
#else
    if (x[0] > 20)
        return x[0];
    real w = exp_of(x[0]), n = w * (w + 2);
    return x[0] * quotient_of(n, n + 2);
#endif
}

#ifdef GRAD
POINTWISE(mish_bwd)
#else
POINTWISE(mish_fwd)
#endif
