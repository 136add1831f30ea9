#include "dispatch/attributes.h"
#include "ops/index/gather.h"

static const cup__unsort_attributes *attributes_of(const cup__call *call)
{
    return call->attributes;
}

static cup_status infer(cup__call *call)
{
    int axis;
    CUP_TRY(cup__need_indices(call, 1, 0, attributes_of(call)->axis));
    CUP_TRY(cup__need_axis(call, 0, attributes_of(call)->axis, &axis));
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[axis] = attributes_of(call)->size;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *ids = call->in[1];
    cup_tensor *out = call->out[0];
    cup__along from = cup__along_of(dy, attributes_of(call)->axis);
    int64_t size = attributes_of(call)->size;
    for (int64_t i = 0; i < out->count; i++)
        cup__store(out, i, 0);
    for (int64_t i = 0; i < dy->count; i++) {
        int64_t id, k = i % from.inner, outer = i / from.inner / from.size;
        CUP_TRY(cup__index_at(call, ids, i, size, &id));
        cup__move_element(out, (outer * size + id) * from.inner + k, dy, cup__offset_of(dy, i));
    }
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    cup_tensor *dy = call->in[0], *out = call->out[0];
    cup__along to = cup__along_of(out, attributes_of(call)->axis);
    CUP_TRY(call->c->device->calls->fill(call->c->device, out->data, 0,
                                         (size_t)(out->count * cup_dtype_size(out->dtype))));
    return cup__gather_launch(call, "put_fwd", dy, out, to, dy->shape[to.axis], 1,
                              dy->count);
}

static const cup__impl impls[] = {{.name = "elements", .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 8, 256), .run = run_cuda}, {0}};
/* Places must not come twice in a line, so that the samples have one a line. */
#define ALONG(axis) &(const cup__unsort_attributes){axis, 6}
static const cup__sample samples[] = {
    {"1 1", ALONG(0)}, {"1x5 1x5", ALONG(0)}, {"3x1 3x1", ALONG(1)}, {"2x1x7 2x1x7", ALONG(-2)},
    {"0x1 0x1", ALONG(1)}, {NULL, NULL}};

static cup_status gradient(cup__grad *g)
{
    const cup__unsort_attributes *a = g->attributes;
    g->d_in[0] = cup_gather(g->c, g->d_out[0], g->in[1], a->axis);
    return CUP_OK;
}

const cup__op cup__op_unsort = {
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .domain = {{0}, {0, 6}},
    .in_dtypes = {0, CUP__DTYPES_INDEX},
};
