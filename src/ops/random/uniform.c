#include <math.h>

#include "dispatch/attributes.h"
#include "ops/random/random_fill.h"

static cup_status infer(cup__call *call)
{
    const cup__uniform_attributes *a = call->attributes;
    if (!isfinite(a->low) || !isfinite(a->high) || a->low > a->high)
        return cup__call_fail(call, CUP_ARGUMENT, "low %g and high %g are no range", a->low,
                              a->high);
    return cup__random_fill_infer(call, a->dtype, a->shape, a->shape_count);
}

#define FILL(dtype, ...)                                                                           \
    &(const cup__uniform_attributes){CUP_##dtype, {__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, \
                                     -1, 1}
static const cup__sample samples[] = {{"", FILL(F32, 3, 5)},  {"", FILL(F32, 5001)},
                                      {"", FILL(BF16, 1027)}, {"", FILL(F16, 2, 3000)},
                                      {"", FILL(F64, 1003)},  {"", FILL(F32, 0, 4)},
                                      {"", FILL(F64, 1)},     {NULL, NULL}};
static const cup__sample bench[] = {
    {"", FILL(F32, 67108864)}, {"", FILL(BF16, 67108864)}, {NULL, NULL}};

const cup__op cup__op_uniform = {
    .kind = CUP__FILL_UNIFORM,
    .infer = infer,
    .specification = cup__random_fill_specification,
    .impls = cup__random_fill_impls,
    .random = true,
    .samples = samples,
    .bench = bench,
};
