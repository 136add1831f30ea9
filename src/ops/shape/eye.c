#include <string.h>

#include "dispatch/attributes.h"
#include "ops/shape/diagonal.h"

static cup_status infer(cup__call *call)
{
    const cup__eye_attributes *a = call->attributes;
    call->result[0] =
        (cup__shape){.dtype = a->dtype, .ndim = 2, .size = {a->rows, a->columns}};
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup__eye_attributes *a = call->attributes;
    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t column = 0; column < a->columns; column++)
            cup__store(call->out[0], row * a->columns + column,
                       a->diagonal > -a->rows && a->diagonal < a->columns &&
                           column == row + a->diagonal);
    return CUP_OK;
}

/* The first row that has a one, and how many have. */
static void find_ones(const cup__eye_attributes *a, int64_t *first, int64_t *count)
{
    *first = *count = 0;
    if (a->diagonal <= -a->rows || a->diagonal >= a->columns)
        return;
    *first = a->diagonal < 0 ? -a->diagonal : 0;
    int64_t rows = a->rows - *first, columns = a->columns - (*first + a->diagonal);
    *count = rows < columns ? rows : columns;
}

static cup_status run(cup__call *call)
{
    const cup__eye_attributes *a = call->attributes;
    cup_tensor *y = call->out[0];
    int64_t first, count;
    find_ones(a, &first, &count);
    CUP_TRY(call->c->device->calls->fill(call->c->device, y->data, 0,
                                         (size_t)(y->count * cup_dtype_size(y->dtype))));
    for (int64_t row = first; row < first + count; row++)
        cup__store(y, row * a->columns + row + a->diagonal, 1);
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    const cup__eye_attributes *a = call->attributes;
    diagonal_call argument = cup__diagonal_call(call->out[0], NULL, a->diagonal);
    uint64_t bits = 0;
    cup_tensor one = {.data = &bits, .dtype = a->dtype};
    cup__store(&one, 0, 1);
    argument.one = bits;
    return cup__diagonal_launch(call, "eye.cu", "eye_fwd", &argument, false);
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(4, 8, 16), .run = run_cuda},
    {.name = "fill", .place = CUP__CPU, .run = run},
    {0}};
#define EYE(...) &(const cup__eye_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"", EYE(CUP_F32, 3, 5, 0)},     {"", EYE(CUP_F64, 5, 3, -1)},  {"", EYE(CUP_BF16, 17, 33, 4)},
    {"", EYE(CUP_I64, 1, 1, 0)},     {"", EYE(CUP_BOOL, 7, 7, 7)},  {"", EYE(CUP_U8, 0, 3, 0)},
    {"", EYE(CUP_F16, 300, 257, -3)}, {"", EYE(CUP_I32, 4, 0, 0)},
    {"", EYE(CUP_F8E4M3, 9, 9, -8)}, {NULL, NULL}};
static const cup__sample bench[] = {{"", EYE(CUP_F32, 8192, 8192, 0)}, {NULL, NULL}};

const cup__op cup__op_eye = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
};
