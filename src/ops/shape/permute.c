#include "dispatch/attributes.h"
#include "ops/index/gather.h"

static cup_status infer(cup__call *call)
{
    const cup__permute_attributes *a = call->attributes;
    const cup_tensor *in = call->in[0];
    unsigned seen = 0;
    if (a->axes_count != in->ndim)
        return cup__call_fail(call, CUP_SHAPE, "%d axes for %d dimensions; name each one once",
                              a->axes_count, in->ndim);
    call->result[0] = cup__shape_of(in);
    for (int i = 0; i < in->ndim; i++) {
        int axis;
        CUP_TRY(cup__need_axis(call, 0, a->axes[i], &axis));
        if (seen & (1u << axis))
            return cup__call_fail(call, CUP_SHAPE, "axis %d is named twice", axis);
        seen |= 1u << axis;
        call->result[0].size[i] = in->shape[axis];
    }
    return CUP_OK;
}

static int64_t axis_of(const cup__permute_attributes *a, int i)
{
    return a->axes[i] < 0 ? a->axes[i] + a->axes_count : a->axes[i];
}

static cup_status view(cup__call *call)
{
    int64_t stride[CUP_MAX_DIMS];
    for (int i = 0; i < call->in[0]->ndim; i++)
        stride[i] = call->in[0]->stride[axis_of(call->attributes, i)];
    call->out[0] = cup__tensor_view(call->in[0], &call->result[0], stride, 0);
    return call->c->error.status;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *in = call->in[0], *out = call->out[0];
    for (int64_t i = 0; i < out->count; i++) {
        int64_t rest = i, offset = 0;
        for (int d = out->ndim; d-- > 0; rest /= out->shape[d])
            offset += rest % out->shape[d] * in->stride[axis_of(call->attributes, d)];
        cup__move_element(call->out[0], i, in, offset);
    }
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const cup__permute_attributes *a = g->attributes;
    int64_t back[CUP_MAX_DIMS];
    for (int i = 0; i < a->axes_count; i++)
        back[axis_of(a, i)] = i;
    g->d_in[0] = cup_permute(g->c, g->d_out[0], back, a->axes_count);
    return CUP_OK;
}

#define AXES(...)                                                                                  \
    &(const cup__permute_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4}
static const cup__sample samples[] = {{"3x5", AXES(1, 0)},
                                      {"2x3x4", AXES(2, 0, 1)},
                                      {"2x3x4x5", AXES(0, 2, 1, -1)},
                                      {"7", AXES(0)},
                                      {"0x3", AXES(-1, 0)},
                                      {NULL, NULL}};

const cup__op cup__op_permute = {
    .infer = infer,
    .view = view,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
};
