#include "dispatch/attributes.h"
#include "ops/reduce/extreme.h"

const cup__op cup__op_min = {
    CUP__REDUCE(CUP__FOLD_MIN),
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER},
    .gradient = cup__extreme_gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
};
