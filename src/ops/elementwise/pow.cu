/* y = a^b; with BASE, a, b and dy give dy b a^(b-1); with EXPONENT, a, y and dy give dy y ln a.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE real apply(const real *x, const attribute *)
{
#ifdef BASE
    return x[1] == 0 ? (real)0 : x[2] * x[1] * pow(x[0], x[1] - 1);
#elif defined(EXPONENT)
    return x[1] == 0 || (x[0] == 0 && x[1] == 1) ? (real)0 : x[2] * x[1] * log_of(x[0]);
#else
    return pow(x[0], x[1]);
#endif
}

#ifdef BASE
POINTWISE(pow_base_bwd)
#elif defined(EXPONENT)
POINTWISE(pow_exponent_bwd)
#else
POINTWISE(pow_fwd)
#endif
