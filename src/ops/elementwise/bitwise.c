/* Integers as rows of bits, negative ones in two's complement. A shift is arithmetic, and one by
 * less than 0 or by 64 and more moves all bits out. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

static cup_status infer(cup__call *call)
{
    for (int i = 0; i < call->in_count; i++)
        if (cup__dtype_is_float(call->in[i]->dtype))
            return cup__call_fail(call, CUP_DTYPE,
                                  "bits are those of integers; convert input %d with cup_cast", i);
    return cup__pointwise_infer(call);
}

#define BITS(name, in_i64, on_device, few, ...)                                                    \
    CUP__ELEMENT_I64(name##_i64, in_i64)                                                           \
    static const cup__pointwise name##_kind = {                                                    \
        .source = #name "_fwd.cu",                                                                 \
        .text = "#include \"pointwise.cuh\"\n\n"                                                   \
                "DEVICE real apply(const real *x, const attribute *)\n"                            \
                "{\n    return " #on_device ";\n}\n\nPOINTWISE(" #name "_fwd)\n",                  \
        .i64 = name##_i64,                                                                         \
        .entry = #name "_fwd"};                                                                    \
    const cup__op cup__op_##name = {.pointwise = &name##_kind,                                     \
                                    .infer = infer,                                                \
                                    .specification = cup__pointwise_specification,                 \
                                    .impls = cup__pointwise_impls,                                 \
                                    .samples = few,                                                \
                                    __VA_ARGS__};

#define NUMBERS (CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(I8))
#define ANY_OF (NUMBERS | CUP__DTYPE(BOOL))
#define TWO(low, high, types)                                                                      \
    .bench = cup__binary_bench, .domain = {{-128, 128}, {low, high}}, .in_dtypes = {types, types}

BITS(bitwise_and, x[0] & x[1], x[0] & x[1], cup__binary_few_samples, TWO(-128, 128, ANY_OF))
BITS(bitwise_or, x[0] | x[1], x[0] | x[1], cup__binary_few_samples, TWO(-128, 128, ANY_OF))
BITS(bitwise_xor, x[0] ^ x[1], x[0] ^ x[1], cup__binary_few_samples, TWO(-128, 128, ANY_OF))
BITS(bitwise_not, ~x[0], ~x[0], cup__unary_samples, .bench = cup__unary_bench,
     .domain = {{-128, 128}}, .in_dtypes = {NUMBERS})
BITS(shift_left, (uint64_t)x[1] < 64 ? (int64_t)((uint64_t)x[0] << x[1]) : 0,
     (uint64_t)x[1] < 64 ? x[0] << x[1] : 0, cup__binary_few_samples, TWO(-1, 40, NUMBERS))
BITS(shift_right, x[0] >> ((uint64_t)x[1] < 64 ? x[1] : 63),
     x[0] >> ((uint64_t)x[1] < 64 ? x[1] : 63), cup__binary_few_samples, TWO(-1, 40, NUMBERS))
