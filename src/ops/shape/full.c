#include <string.h>

#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"

enum { FULL, ZEROS, ONES };

/* zeros and ones have the attributes of full but its last. */
_Static_assert(sizeof(cup__zeros_attributes) == sizeof(cup__ones_attributes) &&
                   offsetof(cup__zeros_attributes, shape) == offsetof(cup__ones_attributes, shape),
               "one struct speaks for both");

static cup_status set_result(cup__call *call, cup_dtype dtype, const int64_t *shape, int ndim)
{
    call->result[0].dtype = dtype;
    call->result[0].ndim = ndim;
    memcpy(call->result[0].size, shape, sizeof call->result[0].size);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup__full_attributes *a = call->attributes;
    return set_result(call, a->dtype, a->shape, a->shape_count);
}

static cup_status infer_constant(cup__call *call)
{
    const cup__zeros_attributes *a = call->attributes;
    return set_result(call, a->dtype, a->shape, a->shape_count);
}

static double value_of(const cup__call *call)
{
    const cup__full_attributes *a = call->attributes;
    return call->op->kind == FULL ? a->value : call->op->kind == ONES;
}

static cup_status specification(cup__call *call)
{
    double value = value_of(call);
    for (int64_t i = 0; i < call->out[0]->count; i++)
        cup__store(call->out[0], i, value);
    return CUP_OK;
}

typedef struct job {
    char *to;
    int64_t size;
    char element[8];
} job;

static void fill(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t i = begin; i < end; i++)
        memcpy(j->to + i * j->size, j->element, (size_t)j->size);
}

static cup_status run(cup__call *call)
{
    cup_dtype dtype = call->out[0]->dtype;
    job j = {.to = call->out[0]->data, .size = cup_dtype_size(dtype)};
    cup_tensor one = {.data = j.element, .dtype = dtype};
    double value = value_of(call);
    cup__store(&one, 0, value);
    if (value == 0)
        return call->c->device->calls->fill(call->c->device, j.to, 0,
                                            (size_t)(call->out[0]->count * j.size));
    cup__parallel_for(call->out[0]->count, 65536, fill, &j);
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    cup_dtype dtype = call->out[0]->dtype;
    int64_t size = cup_dtype_size(dtype), bytes = call->out[0]->count * size;
    uint64_t pattern = 0;
    void *y = call->out[0]->data;
    cup_tensor one = {.data = &pattern, .dtype = dtype};
    cup__store(&one, 0, value_of(call));
    if (pattern == 0)
        return call->c->device->calls->fill(call->c->device, y, 0, (size_t)bytes);
    for (int64_t filled = size; filled < 8; filled *= 2)
        pattern |= pattern << (8 * filled);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "full.cu", "full_fwd", NULL, 0);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = bytes / (256 * 4 * 16) + 1, .threads = 256};
    return cup__launch(gpu, kernel, grid, CUP__ARG(y), CUP__ARG(bytes), CUP__ARG(pattern));
}

cup_tensor *cup__full(cup_context *c, const cup__shape *shape, double value)
{
    return cup_full(c, shape->dtype, shape->ndim, shape->size, value);
}

static const cup__impl impls[] = {{.name = "words", .place = CUP__CUDA, .run = run_cuda},
                                  {.name = "fill", .place = CUP__CPU, .run = run},
                                  {0}};
static const cup__sample samples[] = {
    {"", &(const cup__full_attributes){CUP_F32, {3, 5}, 2, 1.5}},
    {"", &(const cup__full_attributes){CUP_BF16, {1000}, 1, -0.3}},
    {"", &(const cup__full_attributes){CUP_I64, {7}, 1, 7}},
    {"", &(const cup__full_attributes){CUP_U8, {1037}, 1, 200}},
    {"", &(const cup__full_attributes){CUP_BOOL, {3}, 1, 1}},
    {"", &(const cup__full_attributes){CUP_F64, {70000}, 1, 0.1}},
    {"", &(const cup__full_attributes){CUP_F32, {0, 2}, 2, 1}},
    {"", &(const cup__full_attributes){CUP_F64, {4, 4}, 2, 0}},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"", &(const cup__full_attributes){CUP_F32, {67108864}, 1, 1.5}}, {NULL, NULL}};

const cup__op cup__op_full = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
};

static const cup__sample zeros_samples[] = {
    {"", &(const cup__zeros_attributes){CUP_F32, {3, 5}, 2}},
    {"", &(const cup__zeros_attributes){CUP_BF16, {1000}, 1}},
    {"", &(const cup__zeros_attributes){CUP_I64, {0}, 0}},
    {"", &(const cup__zeros_attributes){CUP_U8, {1037}, 1}},
    {"", &(const cup__zeros_attributes){CUP_F64, {0, 2}, 2}},
    {NULL, NULL}};
static const cup__sample ones_samples[] = {
    {"", &(const cup__ones_attributes){CUP_F32, {3, 5}, 2}},
    {"", &(const cup__ones_attributes){CUP_BF16, {1000}, 1}},
    {"", &(const cup__ones_attributes){CUP_I64, {0}, 0}},
    {"", &(const cup__ones_attributes){CUP_U8, {1037}, 1}},
    {"", &(const cup__ones_attributes){CUP_F64, {0, 2}, 2}},
    {NULL, NULL}};
static const cup__sample zeros_bench[] = {
    {"", &(const cup__zeros_attributes){CUP_F32, {67108864}, 1}}, {NULL, NULL}};
static const cup__sample ones_bench[] = {
    {"", &(const cup__ones_attributes){CUP_F32, {67108864}, 1}}, {NULL, NULL}};

const cup__op cup__op_zeros = {
    .kind = ZEROS,
    .infer = infer_constant,
    .specification = specification,
    .impls = impls,
    .samples = zeros_samples,
    .bench = zeros_bench,
};

const cup__op cup__op_ones = {
    .kind = ONES,
    .infer = infer_constant,
    .specification = specification,
    .impls = impls,
    .samples = ones_samples,
    .bench = ones_bench,
};
