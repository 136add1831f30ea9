/* The six comparisons. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define TWO_OF (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8))

/* Everything of one comparison. */
#define COMPARISON(name, holds)                                                                    \
    CUP__ELEMENT_I64(name##_i64, x[0] holds x[1])                                                  \
    CUP__FORMULA(2, name##_fwd, x[0] holds x[1], p holds q ? 1.0f : 0.0f,                          \
                 x[0] holds x[1] ? (real)1 : (real)0, .i64 = name##_i64,                           \
                 .gives = CUP__GIVES_BOOL)                                                         \
    CUP__BINARY(name, .in_dtypes = {TWO_OF, TWO_OF})

COMPARISON(equal, ==)
COMPARISON(not_equal, !=)
COMPARISON(less, <)
COMPARISON(less_equal, <=)
COMPARISON(greater, >)
COMPARISON(greater_equal, >=)
