#include "ops/attributes.h"
#include "ops/copy.h"

static cup_status infer(cup__call *call)
{
    const cup__concat_attributes *a = call->attributes;
    cup__shape *shape = &call->result[0];
    int axis;
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    *shape = cup__shape_of(call->in[0]);
    for (int k = 1; k < call->in_count; k++) {
        const cup_tensor *in = call->in[k];
        CUP_TRY(cup__need_same_dtype(call, 0, k));
        CUP_TRY(cup__need_ndim(call, k, shape->ndim, shape->ndim));
        for (int d = 0; d < shape->ndim; d++)
            if (d != axis && in->shape[d] != shape->size[d])
                return cup__call_fail(call, CUP_SHAPE,
                                      "input %d differs in dimension %d; only sizes along axis %d "
                                      "may differ",
                                      k + 1, d, axis);
        shape->size[axis] += in->shape[axis];
    }
    return CUP_OK;
}

static int axis_of(const cup__call *call)
{
    const cup__concat_attributes *a = call->attributes;
    return a->axis < 0 ? a->axis + call->out[0]->ndim : a->axis;
}

static cup_status specification(cup__call *call)
{
    cup_tensor *out = call->out[0];
    int axis = axis_of(call);
    int64_t before = 0;
    for (int k = 0; k < call->in_count; k++) {
        const cup_tensor *in = call->in[k];
        for (int64_t i = 0; i < in->count; i++) {
            int64_t rest = i, offset = before * out->stride[axis];
            for (int d = in->ndim; d-- > 0; rest /= in->shape[d])
                offset += rest % in->shape[d] * out->stride[d];
            cup__store(out, offset, cup__load(in, cup__offset_of(in, i)));
        }
        before += in->shape[axis];
    }
    return CUP_OK;
}

/* Each input is copied into its place in the result. */
static cup_status run(cup__call *call)
{
    cup_tensor *out = call->out[0];
    int axis = axis_of(call);
    int64_t before = 0;
    for (int k = 0; k < call->in_count; k++) {
        cup_tensor *in = call->in[k];
        cup__shape shape = cup__shape_of(in);
        cup_tensor *place =
            in->count ? cup__tensor_view(out, &shape, out->stride, before * out->stride[axis])
                      : NULL;
        if (place)
            cup__copy_to(call->c, place, in);
        cup_tensor_free(place);
        before += in->shape[axis];
    }
    return call->c->error.status;
}

static cup_status gradient(cup__grad *g)
{
    const cup__concat_attributes *a = g->attributes;
    int ndim = g->in_shape[0].ndim, axis = a->axis < 0 ? a->axis + ndim : a->axis;
    int64_t starts[CUP_MAX_DIMS] = {0};
    for (int k = 0; k < g->in_count; k++) {
        const int64_t *sizes = g->in_shape[k].size;
        if (g->wanted[k])
            g->d_in[k] = cup_slice(g->c, g->d_out[0], starts, ndim, sizes, ndim);
        starts[axis] += sizes[axis];
    }
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "copies", .place = CUP__CUDA, .strided = true, .run = run},
    {.name = "copies", .place = CUP__CPU, .strided = true, .run = run},
    {0},
};
#define AXIS(i) &(const cup__concat_attributes){i}
static const cup__sample samples[] = {
    {"7 4", AXIS(0)}, {"3x5 3x2 3x1", AXIS(1)}, {"2x3x4 2x1x4", AXIS(-2)},
    {"5x3", AXIS(0)}, {"0x5 2x5 0x5", AXIS(0)}, {"64x100 64x28", AXIS(1)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"32768x768 32768x768 32768x768", AXIS(1)}, {"8192x4096 8192x4096", AXIS(0)}, {NULL, NULL}};

const cup__op cup__op_concat = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX, CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX,
                  CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX},
};
