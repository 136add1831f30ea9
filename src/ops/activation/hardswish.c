#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, hardswish_fwd, x[0] * fmin(fmax(x[0] + 3, 0), 6) / 6,
             p * __builtin_fminf(__builtin_fmaxf(p + 3.0f, 0.0f), 6.0f) * (1.0f / 6),
             hardswish_of(x[0]))
CUP__FORMULA(2, hardswish_bwd, x[1] * (x[0] <= -3 ? 0 : x[0] >= 3 ? 1 : (2 * x[0] + 3) / 6),
             q * (p <= -3.0f ? 0.0f : p >= 3.0f ? 1.0f : (2.0f * p + 3.0f) * (1.0f / 6)),
             (x[0] <= -3 ? (real)0 : x[0] >= 3 ? (real)1 : (2 * x[0] + 3) * (real)(1.0 / 6)) * x[1])
static cup_tensor *hardswish_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *zero = cup__number(c, x, 0), *one = cup__number(c, x, 1);
    cup_tensor *three = cup__number(c, x, 3), *low = cup_neg(c, three);
    cup_tensor *between = cup_scale(c, cup_add(c, cup_scale(c, x, 2), three), 1.0 / 6);
    cup_tensor *s = cup_where(c, cup_greater_equal(c, x, three), one, between);
    return cup_where(c, cup_less_equal(c, x, low), zero, s);
}

CUP__UNARY_TWICE(hardswish, in, -5, 5, -5, 5)
