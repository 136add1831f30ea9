/* y = sin x, or with COS cos x; with SIN_GRAD and COS_GRAD, x and dy give dy cos x and -dy sin x.
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

#if defined(COS)
#define NAME cos_fwd
#elif defined(SIN_GRAD)
#define NAME sin_bwd
#elif defined(COS_GRAD)
#define NAME cos_bwd
#else
#define NAME sin_fwd
#endif

DEVICE real apply(const real *x, const attribute *)
{
#if defined(COS)
    return cos(x[0]);
#elif defined(SIN_GRAD)
    return x[1] * cos(x[0]);
#elif defined(COS_GRAD)
    return -x[1] * sin(x[0]);
#else
    return sin(x[0]);
#endif
}

POINTWISE(NAME)
