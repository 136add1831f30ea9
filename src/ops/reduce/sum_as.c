#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

CUP__FOLD(sum_as, 0, acc + x, acc + x, acc)

static cup_status infer(cup__call *call)
{
    cup_dtype dtype = ((const cup__sum_as_attributes *)call->attributes)->dtype;
    if (!cup__dtype_is_float(dtype))
        return cup__call_fail(call, CUP_DTYPE, "its result is of floats, not %s",
                              cup_dtype_name(dtype));
    CUP_TRY(cup__reduce_infer(call));
    call->result[0].dtype = dtype;
    return CUP_OK;
}

#define AXES(dtype, keep, ...)                                                                     \
    &(const cup__sum_as_attributes){                                                               \
        {__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, keep, CUP_##dtype}
static const cup__sum_as_attributes all = {{0}, 0, false, CUP_BF16};
static const cup__sample samples[] = {{"7", &all},
                                      {"0x5", AXES(BF16, false, 0)},
                                      {"3x5", AXES(F16, true, 1)},
                                      {"65x1025", AXES(F32, false, -1)},
                                      {"1025x65", AXES(BF16, false, 0)},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"256x3072", AXES(BF16, false, 0)}, {NULL, NULL}};

const cup__op cup__op_sum_as = {
    .fold = &sum_as_fold,
    .infer = infer,
    .specification = cup__reduce_specification,
    .impls = cup__reduce_impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-0.5, 1}},
    .tolerance = CUP__REDUCE_TOLERANCE,
};
