/* The six comparisons. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define TWO_OF (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8))

/* Everything of one comparison. */
#define COMPARISON(name, define, holds)                                                            \
    CUP__ELEMENT(name, x[0] holds x[1])                                                            \
    CUP__ELEMENT_I64(name##_i64, x[0] holds x[1])                                                  \
    CUP__FLOATS_2(name##_f32, p holds q ? 1.0f : 0.0f)                                             \
    static const cup__pointwise name##_kind = {.source = "compare.cu",                             \
                                               .knob = define,                                     \
                                               .f64 = name,                                        \
                                               .f32 = name##_f32,                                  \
                                               .i64 = name##_i64,                                  \
                                               .gives = CUP__GIVES_BOOL,                           \
                                               .entry = #name "_fwd"};                             \
    const cup__op cup__op_##name = {                                                               \
        CUP__POINTWISE(&name##_kind),                                                              \
        .samples = cup__binary_samples,                                                            \
        .bench = cup__binary_bench,                                                                \
        .in_dtypes = {TWO_OF, TWO_OF},                                                             \
    }

COMPARISON(equal, "EQUAL", ==);
COMPARISON(not_equal, "NOT_EQUAL", !=);
COMPARISON(less, "LESS", <);
COMPARISON(less_equal, "LESS_EQUAL", <=);
COMPARISON(greater, "GREATER", >);
COMPARISON(greater_equal, "GREATER_EQUAL", >=);
