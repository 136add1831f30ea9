/* Truth: an element that is not 0 is true, NaN as well. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define ANY_OF                                                                                     \
    (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(BOOL) | CUP__DTYPE(I8))

#define TRUTH(inputs, name, in_double, in_float, on_device, ...)                                   \
    CUP__ELEMENT_I64(name##_i64, in_double)                                                        \
    CUP__FORMULA(inputs, name##_fwd, in_double, (in_float) ? 1.0f : 0.0f,                          \
                 (on_device) ? (real)1 : (real)0, .i64 = name##_i64, .gives = CUP__GIVES_BOOL)     \
    const cup__op cup__op_##name = {CUP__POINTWISE(&name##_fwd_kind), __VA_ARGS__};

#define TWO                                                                                        \
    .samples = cup__binary_few_samples, .bench = cup__binary_bench, .domain = {{0, 2}, {0, 2}},    \
    .in_dtypes = {ANY_OF, ANY_OF}

TRUTH(2, logical_and, x[0] != 0 && x[1] != 0, (p != 0.0f) & (q != 0.0f), x[0] != 0 && x[1] != 0,
      TWO)
TRUTH(2, logical_or, x[0] != 0 || x[1] != 0, (p != 0.0f) | (q != 0.0f), x[0] != 0 || x[1] != 0,
      TWO)
TRUTH(2, logical_xor, (x[0] != 0) != (x[1] != 0), (p != 0.0f) != (q != 0.0f),
      (x[0] != 0) != (x[1] != 0), TWO)
TRUTH(1, logical_not, x[0] == 0, p == 0.0f, x[0] == 0, .samples = cup__unary_samples,
      .bench = cup__unary_bench, .domain = {{0, 2}}, .in_dtypes = {ANY_OF})
