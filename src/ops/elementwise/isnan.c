/* What kind of number an element is. Of an infinite one the distance to itself is NaN. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define ASKS(name, in_double, in_float, on_device)                                                 \
    CUP__FORMULA(1, name##_fwd, in_double, (in_float) ? 1.0f : 0.0f,                               \
                 (on_device) ? (real)1 : (real)0, .gives = CUP__GIVES_BOOL)                        \
    const cup__op cup__op_##name = {CUP__POINTWISE(&name##_fwd_kind),                              \
                                    .samples = cup__unary_samples,                                 \
                                    .bench = cup__unary_bench};

ASKS(isnan, x[0] != x[0], p != p, x[0] != x[0])
ASKS(isinf, x[0] == x[0] && x[0] - x[0] != 0, p == p && p - p != 0.0f,
     x[0] == x[0] && x[0] - x[0] != 0)
ASKS(isfinite, x[0] - x[0] == 0, p - p == 0.0f, x[0] - x[0] == 0)
