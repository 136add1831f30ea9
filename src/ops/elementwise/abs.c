#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(abs_i64, x[0] < 0 ? (int64_t)(0 - (uint64_t)x[0]) : x[0])

CUP__FORMULA(1, abs_fwd, fabs(x[0]), __builtin_fabsf(p), x[0] < 0 ? -x[0] : x[0] + 0,
             .i64 = abs_i64)
CUP__FORMULA(2, abs_bwd, x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : 0,
             p > 0.0f ? q : p < 0.0f ? -q : 0.0f,
             x[0] > 0 ? x[1] : x[0] < 0 ? -x[1] : (real)0)
CUP__UNARY(abs, in, -2, 2, -2, 2)
