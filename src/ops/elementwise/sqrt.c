#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, sqrt_fwd, sqrt(x[0]), __builtin_sqrtf(p), sqrt_of(x[0]))
CUP__FORMULA(2, sqrt_bwd, x[1] / (2 * x[0]), q / (2.0f * p), quotient_of(x[1], 2 * x[0]))

/* Of dy / 2 y. */
static cup_tensor *sqrt_slope(cup_context *c, cup_tensor *y)
{
    return cup_div(c, cup__number(c, y, 0.5), y);
}

CUP__UNARY_TWICE(sqrt, out, 0.05, 4, 0.2, 2)
