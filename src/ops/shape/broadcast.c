#include <string.h>

#include "dispatch/attributes.h"

static cup_status infer(cup__call *call)
{
    const cup__broadcast_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    cup__shape *shape = &call->result[0];
    shape->dtype = in->dtype;
    shape->ndim = a->shape_count;
    memcpy(shape->size, a->shape, sizeof a->shape);
    int extra = shape->ndim - in->ndim;
    for (int i = 0; i < in->ndim; i++)
        if (extra < 0 || (in->shape[i] != 1 && in->shape[i] != shape->size[i + extra]))
            return cup__call_fail(call, CUP_SHAPE,
                                  "only sizes of 1 can be repeated, and dimensions added in front");
    return CUP_OK;
}

static cup_status view(cup__call *call)
{
    cup_tensor *in = call->in[0];
    int64_t stride[CUP_MAX_DIMS];
    int extra = call->result[0].ndim - in->ndim;
    for (int i = 0; i < call->result[0].ndim; i++)
        stride[i] = i < extra || in->shape[i - extra] == 1 ? 0 : in->stride[i - extra];
    call->out[0] = cup__tensor_view(in, &call->result[0], stride, 0);
    return call->c->error.status;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *in = call->in[0], *out = call->out[0];
    for (int64_t i = 0; i < out->count; i++) {
        int64_t rest = i, offset = 0;
        for (int d = out->ndim; d-- > 0; rest /= out->shape[d]) {
            int at = d - (out->ndim - in->ndim);
            if (at >= 0 && in->shape[at] != 1)
                offset += rest % out->shape[d] * in->stride[at];
        }
        cup__store(call->out[0], i, cup__load(in, offset));
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[0]);
    return CUP_OK;
}

#define TO(...) &(const cup__broadcast_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4}
static const cup__sample samples[] = {
    {"3", TO(2, 3)}, {"2x1x4", TO(2, 5, 4)}, {"()", TO(3)}, {"1", TO(0)}, {NULL, NULL}};

const cup__op cup__op_broadcast = {
    .infer = infer,
    .view = view,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
};
