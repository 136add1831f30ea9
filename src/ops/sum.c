#include <string.h>

#include "ops/attributes.h"

static cup_status infer(cup__call *call)
{
    const cup__sum_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    bool reduced[CUP_MAX_DIMS] = {false};
    for (int i = 0; i < a->axes_count; i++) {
        int axis;
        CUP_TRY(cup__need_axis(call, 0, (int)a->axes[i], &axis));
        reduced[axis] = true;
    }
    cup__shape *shape = &call->result[0];
    shape->dtype = in->dtype;
    shape->ndim = 0;
    for (int i = 0; i < in->ndim; i++) {
        bool gone = reduced[i] || a->axes_count == 0;
        if (!gone || a->keep)
            shape->size[shape->ndim++] = gone ? 1 : in->shape[i];
    }
    return CUP_OK;
}

/* The place in the result that element `index` of the input is added to. */
static int64_t target_of(const cup_tensor *in, const cup__sum_attributes *a, int64_t index)
{
    bool reduced[CUP_MAX_DIMS] = {false};
    for (int i = 0; i < a->axes_count; i++)
        reduced[(a->axes[i] + in->ndim) % in->ndim] = true;
    int64_t target = 0, step = 1;
    for (int d = in->ndim; d-- > 0; index /= in->shape[d]) {
        if (reduced[d] || a->axes_count == 0)
            continue;
        target += index % in->shape[d] * step;
        step *= in->shape[d];
    }
    return target;
}

static cup_status specification(cup__call *call)
{
    const cup__sum_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    cup_tensor *out = call->out[0];
    cup__shape sums = {.dtype = CUP_F64, .ndim = 1, .size = {out->count}};
    cup_tensor *total = cup__tensor_make(call->c, &sums, "sum");
    if (!total)
        return call->c->error.status;
    double *sum = total->data;
    memset(sum, 0, (size_t)out->count * sizeof *sum);
    for (int64_t i = 0; i < in->count; i++)
        sum[target_of(in, a, i)] += cup__load(in, cup__offset_of(in, i));
    for (int64_t i = 0; i < out->count; i++)
        cup__store(out, i, sum[i]);
    cup_tensor_free(total);
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const cup__sum_attributes *a = g->attributes;
    const cup__shape *shape = &g->in_shape[0];
    cup__shape kept = *shape;
    for (int i = 0; i < shape->ndim; i++)
        kept.size[i] = a->axes_count == 0 ? 1 : shape->size[i];
    for (int i = 0; i < a->axes_count; i++)
        kept.size[(a->axes[i] + shape->ndim) % shape->ndim] = 1;
    cup_tensor *d = cup_reshape(g->c, g->d_out[0], kept.size, kept.ndim);
    g->d_in[0] = cup_broadcast(g->c, d, shape->size, shape->ndim);
    return CUP_OK;
}

#define AXES(keep, ...)                                                                            \
    &(const cup__sum_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4, keep}
static const cup__sum_attributes all = {{0}, 0, false};
static const cup__sample samples[] = {
    {"7", &all},          {"3x5", AXES(false, 1)}, {"3x5", AXES(true, 0)}, {"2x3x4", AXES(false, 0, 2)},
    {"0x5", AXES(false, 0)}, {"()", &all},         {"65x1025", AXES(false, -1)},
    {"1025x65", AXES(false, 0)}, {"4x33x17", AXES(true, 1)}, {NULL, NULL}};
static const cup__sample bench[] = {{"268435456", &all},
                                    {"16384x16384", AXES(false, 0)},
                                    {"16384x16384", AXES(false, 1)},
                                    {NULL, NULL}};

const cup__op cup__op_sum = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .samples = samples,
    .bench = bench,
};
