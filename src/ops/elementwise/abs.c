#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(abs_i64, x[0] < 0 ? (int64_t)(0 - (uint64_t)x[0]) : x[0])

CUP__FORMULA(1, abs_fwd, fabs(x[0]), __builtin_fabsf(p), x[0] < 0 ? -x[0] : x[0] + 0,
             .i64 = abs_i64)
CUP__FORMULA(2, abs_bwd, x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : 0,
             p > 0.0f ? q : p < 0.0f ? -q : 0.0f,
             x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : (real)0)
static cup_tensor *abs_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *zero = cup__number(c, x, 0), *one = cup__number(c, x, 1);
    cup_tensor *down = cup_where(c, cup_less(c, x, zero), cup_neg(c, one), zero);
    return cup_where(c, cup_greater(c, x, zero), one, down);
}

CUP__UNARY_TWICE(abs, in, -2, 2, -2, 2)
