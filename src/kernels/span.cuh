/* Numbers of which it is known between which two they lie. Plain C for kernels and for the test of
 * what they find. */
#ifndef CUP_SPAN_CUH
#define CUP_SPAN_CUH

#ifdef __CUDACC__
#include "dtype.cuh"
#define SPAN_INFINITE __int_as_float(0x7f800000)
#else
#include <math.h>
#include <stdbool.h>
#define DEVICE static inline
#define SPAN_INFINITE INFINITY
#define __fadd_rn(a, b) ((a) + (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __frcp_rn(a) (1 / (a))
#endif

/* A number lies between these; a condition that does not hold is 0. */
typedef struct span {
    float least, most;
} span;

/* Each operation rounds as the formula's own does, but for products, which may be rounded together
 * with a sum, and quotients. Here none are rounded together, so that the warp that copies and those
 * that multiply come to the same end. */
#define SPAN_ROUNDING 1e-6f

DEVICE span span_of(float least, float most)
{
    span a;
    a.least = least;
    a.most = most;
    return a;
}

DEVICE span span_any(void)
{
    return span_of(-SPAN_INFINITE, SPAN_INFINITE);
}

/* What is no number may be anything. */
DEVICE span span_between(float least, float most)
{
    return least <= most ? span_of(least, most) : span_any();
}

DEVICE span span_truth(bool must, bool may)
{
    return span_of(must ? 1.0f : 0.0f, may ? 1.0f : 0.0f);
}

DEVICE bool may_hold(span a)
{
    return a.least != 0 || a.most != 0;
}

DEVICE bool must_hold(span a)
{
    return a.least > 0 || a.most < 0;
}

DEVICE span span_number(float a)
{
    return span_between(a, a);
}

DEVICE span span_add(span a, span b)
{
    return span_between(__fadd_rn(a.least, b.least), __fadd_rn(a.most, b.most));
}

DEVICE span span_neg(span a)
{
    return span_of(-a.most, -a.least);
}

DEVICE span span_sub(span a, span b)
{
    return span_add(a, span_neg(b));
}

DEVICE span span_mul(span a, span b)
{
    float w = __fmul_rn(a.least, b.least), x = __fmul_rn(a.least, b.most);
    float y = __fmul_rn(a.most, b.least), z = __fmul_rn(a.most, b.most);
    float least = fminf(fminf(w, x), fminf(y, z)), most = fmaxf(fmaxf(w, x), fmaxf(y, z));
    if (w != w || x != x || y != y || z != z)
        return span_any();
    return span_between(__fadd_rn(least, -__fmul_rn(SPAN_ROUNDING, fabsf(least))),
                        __fadd_rn(most, __fmul_rn(SPAN_ROUNDING, fabsf(most))));
}

DEVICE span span_div(span a, span b)
{
    return b.least > 0 || b.most < 0 ? span_mul(a, span_of(__frcp_rn(b.most), __frcp_rn(b.least)))
                                     : span_any();
}

DEVICE span span_min(span a, span b)
{
    return span_of(fminf(a.least, b.least), fminf(a.most, b.most));
}

DEVICE span span_max(span a, span b)
{
    return span_of(fmaxf(a.least, b.least), fmaxf(a.most, b.most));
}

DEVICE span span_abs(span a)
{
    return span_of(fmaxf(0, fmaxf(a.least, -a.most)), fmaxf(-a.least, a.most));
}

DEVICE span span_floor(span a)
{
    return span_of(floorf(a.least), floorf(a.most));
}

DEVICE span span_not(span a)
{
    return span_truth(!may_hold(a), !must_hold(a));
}

DEVICE span span_and(span a, span b)
{
    return span_truth(must_hold(a) && must_hold(b), may_hold(a) && may_hold(b));
}

DEVICE span span_or(span a, span b)
{
    return span_truth(must_hold(a) || must_hold(b), may_hold(a) || may_hold(b));
}

DEVICE span span_less(span a, span b)
{
    return span_truth(a.most < b.least, a.least < b.most);
}

DEVICE span span_less_equal(span a, span b)
{
    return span_truth(a.most <= b.least, a.least <= b.most);
}

DEVICE span span_equal(span a, span b)
{
    return span_truth(a.least == b.most && a.most == b.least,
                      a.least <= b.most && b.least <= a.most);
}

DEVICE span span_not_equal(span a, span b)
{
    return span_not(span_equal(a, b));
}

DEVICE span span_where(span a, span b, span c)
{
    if (must_hold(a))
        return b;
    return may_hold(a) ? span_of(fminf(b.least, c.least), fmaxf(b.most, c.most)) : c;
}

#endif
