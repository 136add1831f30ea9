/* What a division leaves (REMAINDER with the sign of b, FMOD with that of a), its whole quotient
 * rounded down (FLOOR_DIV), and dy times minus the slope along b of the first two (.._GRAD).
 * Elementwise: grid and block as kernels/pointwise.cuh says. */
#include "pointwise.cuh"

DEVICE int64_t rest_of(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
DEVICE float rest_of(float a, float b) { return fmodf(a, b); }
DEVICE double rest_of(double a, double b) { return fmod(a, b); }

template <typename R> DEVICE R cut_of(R a, R b) { return rint((a - rest_of(a, b)) / b); }

DEVICE int64_t floor_of(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return b == 0 ? 0 : -a;
    int64_t rest = a % b;
    return a / b - (rest != 0 && (rest < 0) != (b < 0));
}

template <typename R> DEVICE R floor_of(R a, R b)
{
    R rest = rest_of(a, b), q = rint((a - rest) / b);
    if (b == 0)
        return a / b;
    if (rest != 0 && (rest < 0) != (b < 0))
        q -= 1;
    return q == 0 ? copysign((R)0, a / b) : q;
}

DEVICE real apply(const real *x, const attribute *)
{
#if defined(FMOD)
    return rest_of(x[0], x[1]);
#elif defined(FMOD_GRAD)
    return -x[2] * cut_of(x[0], x[1]);
#elif defined(REMAINDER)
    real rest = rest_of(x[0], x[1]);
    return rest != 0 && (rest < 0) != (x[1] < 0) ? rest + x[1] : rest;
#elif defined(REMAINDER_GRAD)
    return -x[2] * floor_of(x[0], x[1]);
#else
    return floor_of(x[0], x[1]);
#endif
}

POINTWISE(remainder_fwd)
