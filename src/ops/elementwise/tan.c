#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, tan_fwd, tan(x[0]), __builtin_tanf(p), tan(x[0]))
CUP__FORMULA(2, tan_bwd, x[1] * (1 + x[0] * x[0]), q * (1.0f + p * p), x[1] * (1 + x[0] * x[0]))

static cup_tensor *tan_slope(cup_context *c, cup_tensor *y)
{
    return cup_add(c, cup_square(c, y), cup__number(c, y, 1));
}

CUP__UNARY_TWICE(tan, out, -1.5, 1.5, -4, 4)
