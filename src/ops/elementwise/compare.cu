/* Comparisons of a and b, giving bool; the knob says which. Elementwise: grid and block as
 * kernels/pointwise.cuh says. */
#include "pointwise.cuh"

#if defined(EQUAL)
#define HOLDS ==
#define NAME equal_fwd
#elif defined(NOT_EQUAL)
#define HOLDS !=
#define NAME not_equal_fwd
#elif defined(LESS)
#define HOLDS <
#define NAME less_fwd
#elif defined(LESS_EQUAL)
#define HOLDS <=
#define NAME less_equal_fwd
#elif defined(GREATER)
#define HOLDS >
#define NAME greater_fwd
#else
#define HOLDS >=
#define NAME greater_equal_fwd
#endif

DEVICE real apply(const real *x, const attribute *)
{
    return x[0] HOLDS x[1] ? (real)1 : (real)0;
}

POINTWISE(NAME)
