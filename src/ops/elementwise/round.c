/* Whole numbers near x. Their slope is 0 wherever there is one, and where they jump is said to be
 * 0. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, round_fwd, rint(x[0]), __builtin_rintf(p), rint(x[0]))
CUP__FORMULA(1, floor_fwd, floor(x[0]), __builtin_floorf(p), floor(x[0]))
CUP__FORMULA(1, ceil_fwd, ceil(x[0]), __builtin_ceilf(p), ceil(x[0]))
CUP__FORMULA(1, trunc_fwd, trunc(x[0]), __builtin_truncf(p), trunc(x[0]))

#define STEPS(name)                                                                                \
    const cup__op cup__op_##name = {CUP__POINTWISE(&name##_fwd_kind),                              \
                                    .gradient = cup__no_slope,                                     \
                                    .composed = cup__no_slope,                                     \
                                    .samples = cup__unary_samples,                                 \
                                    .bench = cup__unary_bench,                                     \
                                    .domain = {{-9, 9}}};

STEPS(round)
STEPS(floor)
STEPS(ceil)
STEPS(trunc)
