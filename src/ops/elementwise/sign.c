#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(sign_i64, (x[0] > 0) - (x[0] < 0))
CUP__FORMULA(1, sign_fwd, x[0] > 0 ? 1 : x[0] < 0 ? -1 : x[0],
             p > 0.0f ? 1.0f : p < 0.0f ? -1.0f : p,
             x[0] > 0 ? (real)1 : x[0] < 0 ? (real)-1 : x[0], .i64 = sign_i64)

const cup__op cup__op_sign = {
    CUP__POINTWISE(&sign_fwd_kind),
    .gradient = cup__no_slope,
    .composed = cup__no_slope,
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(I8)},
};
