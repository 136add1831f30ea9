/* Generated from src/ops/ops.def by `make gen`. */
#include <limits.h>

#include "ops/attributes.h"
#include "ops/call.h"

static const cup__attribute full_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__full_attributes, dtype)},
    {"shape", CUP__KIND_INTS, offsetof(cup__full_attributes, shape)},
    {"value", CUP__KIND_FLOAT, offsetof(cup__full_attributes, value)},
    {NULL, 0, 0}};
static const cup__attribute reshape_attributes[] = {
    {"shape", CUP__KIND_INTS, offsetof(cup__reshape_attributes, shape)},
    {NULL, 0, 0}};
static const cup__attribute broadcast_attributes[] = {
    {"shape", CUP__KIND_INTS, offsetof(cup__broadcast_attributes, shape)},
    {NULL, 0, 0}};
static const cup__attribute sum_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__sum_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__sum_attributes, keep)},
    {NULL, 0, 0}};

const cup__row cup__rows[] = {
    {"add", &cup__op_add, "a, b", "",
     "y",
     "a + b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"mul", &cup__op_mul, "a, b", "",
     "y",
     "a * b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"gelu", &cup__op_gelu, "x", "",
     "y",
     "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", 1, 1, 1, 1, true, 0, NULL},
    {"gelu_grad", &cup__op_gelu_grad, "x, dy", "",
     "dx",
     "dy times the derivative of gelu at x", 2, 2, 1, 1, false, 0, NULL},
    {"full", &cup__op_full, "", "dtype dtype, ints shape, float value",
     "y",
     "a tensor whose elements all have one value", 0, 0, 1, 1, true, sizeof(cup__full_attributes), full_attributes},
    {"copy", &cup__op_copy, "x", "",
     "y",
     "the same elements, in row-major order in new memory", 1, 1, 1, 1, true, 0, NULL},
    {"reshape", &cup__op_reshape, "x", "ints shape",
     "y",
     "the same elements in another shape, one size of which may be -1; a view where the strides allow, else a copy", 1, 1, 1, 1, true, sizeof(cup__reshape_attributes), reshape_attributes},
    {"broadcast", &cup__op_broadcast, "x", "ints shape",
     "y",
     "a view in which dimensions of size 1, or missing in front, are repeated", 1, 1, 1, 1, true, sizeof(cup__broadcast_attributes), broadcast_attributes},
    {"sum", &cup__op_sum, "x", "ints axes, bool keep",
     "y",
     "sum over the axes, over all when none is given; keep leaves them with size 1", 1, 1, 1, 1, true, sizeof(cup__sum_attributes), sum_attributes},
    {0}};

cup_tensor *cup_add(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_add], in, 2, NULL, NULL);
}

cup_tensor *cup_mul(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_mul], in, 2, NULL, NULL);
}

cup_tensor *cup_gelu(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu], in, 1, NULL, NULL);
}

cup_tensor *cup__gelu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu_grad], in, 2, NULL, NULL);
}

cup_tensor *cup_full(cup_context *c, cup_dtype dtype, const int64_t *shape, int shape_count, double value)
{
    cup__full_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    attributes.value = value;
    cup_tensor *const in[] = {NULL};
    return cup__op_call(c, &cup__rows[CUP__OP_full], in, 0, &attributes, NULL);
}

cup_tensor *cup_copy(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_copy], in, 1, NULL, NULL);
}

cup_tensor *cup_reshape(cup_context *c, cup_tensor *x, const int64_t *shape, int shape_count)
{
    cup__reshape_attributes attributes = {0};
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_reshape], in, 1, &attributes, NULL);
}

cup_tensor *cup_broadcast(cup_context *c, cup_tensor *x, const int64_t *shape, int shape_count)
{
    cup__broadcast_attributes attributes = {0};
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_broadcast], in, 1, &attributes, NULL);
}

cup_tensor *cup_sum(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    cup__sum_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_sum], in, 1, &attributes, NULL);
}
