#include <string.h>

#include "base/memory.h"
#include "dispatch/attributes.h"
#include "ops/index/gather.h"

static cup_status fill_in_size(cup__call *call, cup__shape *shape)
{
    int64_t known = 1, nonzero = 1;
    int open = -1;
    for (int i = 0; i < shape->ndim; i++) {
        int64_t size = shape->size[i];
        if (size == -1 && open < 0) {
            open = i;
            continue;
        }
        if (size < 0)
            return cup__call_fail(call, CUP_SHAPE,
                                  "sizes must be at least 0, but for one that may be -1");
        /* Strides are products of sizes even where there are no elements. */
        if (!cup__multiply_i64(nonzero, size ? size : 1, &nonzero) || nonzero > INT64_MAX / 64)
            return cup__call_fail(call, CUP_SHAPE, "the sizes are too large to address");
        known = size && known ? nonzero : 0;
    }
    int64_t count = call->in[0]->count;
    if (open >= 0 && known > 0 && count % known == 0)
        shape->size[open] = count / known;
    else if (open >= 0 || known != count)
        return cup__call_fail(call, CUP_SHAPE, "%lld elements do not fill the new shape of %lld",
                              (long long)count, (long long)known);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup__reshape_attributes *a = call->attributes;
    cup__shape *shape = &call->result[0];
    shape->dtype = call->in[0]->dtype;
    shape->ndim = a->shape_count;
    memcpy(shape->size, a->shape, sizeof a->shape);
    return fill_in_size(call, shape);
}

/* Strides of the new shape over the same memory; false where a copy is needed. Each run of old
 * dimensions that lies evenly in memory is cut up into new ones. */
static bool find_strides(const cup_tensor *t, const cup__shape *shape, int64_t *stride)
{
    int64_t size[CUP_MAX_DIMS], step[CUP_MAX_DIMS];
    int runs = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1)
            continue;
        if (runs && step[runs - 1] == t->stride[i] * t->shape[i]) {
            size[runs - 1] *= t->shape[i];
            step[runs - 1] = t->stride[i];
        } else {
            size[runs] = t->shape[i];
            step[runs++] = t->stride[i];
        }
    }
    int run = runs - 1;
    int64_t left = runs ? size[run] : 1, next = runs ? step[run] : 1;
    for (int i = shape->ndim; i-- > 0;) {
        if (left == 1 && run > 0 && shape->size[i] != 1) {
            left = size[--run];
            next = step[run];
        }
        if (left % shape->size[i])
            return false;
        stride[i] = next;
        next *= shape->size[i];
        left /= shape->size[i];
    }
    return true;
}

static cup_status view(cup__call *call)
{
    cup_tensor *in = call->in[0];
    int64_t stride[CUP_MAX_DIMS];
    cup_tensor *base = in, *copy = NULL;
    if (in->count == 0 || !find_strides(in, &call->result[0], stride)) {
        base = copy = cup__contiguous(call->c, in);
        int64_t next = 1;
        for (int i = call->result[0].ndim; i-- > 0; next *= call->result[0].size[i])
            stride[i] = next;
    }
    call->out[0] = base ? cup__tensor_view(base, &call->result[0], stride, 0) : NULL;
    if (copy != in)
        cup_tensor_free(copy);
    return call->c->error.status;
}

static cup_status specification(cup__call *call)
{
    for (int64_t i = 0; i < call->in[0]->count; i++)
        cup__move_element(call->out[0], i, call->in[0], cup__offset_of(call->in[0], i));
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_reshape(g->c, g->d_out[0], g->in_shape[0].ndim, g->in_shape[0].size);
    return CUP_OK;
}

#define TO(...) &(const cup__reshape_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4}
static const cup__sample samples[] = {
    {"6", TO(2, 3)},    {"2x3x4", TO(6, -1)},    {"2x6", TO(2, 2, 3)}, {"0x3", TO(3, 0)},
    {"5x7", TO(1, 35)}, {"4x3x2", TO(2, 2, 6)}, {NULL, NULL}};

const cup__op cup__op_reshape = {
    .infer = infer,
    .view = view,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
};
