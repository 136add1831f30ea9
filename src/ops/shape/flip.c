#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/shape/copy.h"

/* Bit i: dimension i is turned round. */
static cup_status find_axes(cup__call *call, unsigned *turned)
{
    const cup__flip_attributes *a = call->attributes;
    *turned = a->axes_count ? 0 : ~0u;
    for (int i = 0; i < a->axes_count; i++) {
        int axis;
        CUP_TRY(cup__need_axis(call, 0, a->axes[i], &axis));
        if (*turned & (1u << axis))
            return cup__call_fail(call, CUP_SHAPE, "axis %d is named twice", axis);
        *turned |= 1u << axis;
    }
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    unsigned turned;
    call->result[0] = cup__shape_of(call->in[0]);
    return find_axes(call, &turned);
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *in = call->in[0];
    unsigned turned;
    CUP_TRY(find_axes(call, &turned));
    for (int64_t i = 0; i < in->count; i++) {
        int64_t rest = i, offset = 0;
        for (int d = in->ndim; d-- > 0; rest /= in->shape[d]) {
            int64_t place = rest % in->shape[d];
            offset += (turned >> d & 1 ? in->shape[d] - 1 - place : place) * in->stride[d];
        }
        cup__move_element(call->out[0], i, in, offset);
    }
    return CUP_OK;
}

/* A copy of a view that begins at the other end and goes backwards. */
static cup_status run(cup__call *call)
{
    cup_tensor *in = call->in[0];
    cup__shape shape = cup__shape_of(in);
    int64_t stride[CUP_MAX_DIMS], offset = 0;
    unsigned turned;
    CUP_TRY(find_axes(call, &turned));
    for (int d = 0; d < in->ndim; d++) {
        bool turns = turned >> d & 1;
        stride[d] = turns ? -in->stride[d] : in->stride[d];
        offset += turns ? (in->shape[d] - 1) * in->stride[d] : 0;
    }
    cup_tensor *view = cup__tensor_view(in, &shape, stride, offset);
    if (view)
        cup__copy_to(call->c, call->out[0], view);
    cup_tensor_free(view);
    return call->c->error.status;
}

static cup_status gradient(cup__grad *g)
{
    const cup__flip_attributes *a = g->attributes;
    g->d_in[0] = cup_flip(g->c, g->d_out[0], a->axes, a->axes_count);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "copy", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16, 64), .strided = true, .run = run},
    {.name = "copy", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true, .run = run},
    {0}};
#define AXES(...) &(const cup__flip_attributes){{__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / 4}
static const cup__flip_attributes all = {{0}, 0};
static const cup__sample samples[] = {
    {"7", AXES(0)},         {"3x5", AXES(-1)},        {"3x5", AXES(0)},     {"2x3x4", AXES(0, 2)},
    {"()", &all},           {"0x3", &all},            {"65x33", &all},      {"33x2x17x8", AXES(1)},
    {"4x130x3", AXES(1)},   {"2x64x128", AXES(1)},    {"1x1x9", AXES(0)},
    {"3x70x130", AXES(2, 1)}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"67108864", AXES(0)}, {"8192x8192", AXES(0)}, {"8192x8192", AXES(1)}, {NULL, NULL}};

const cup__op cup__op_flip = {CUP__MOVER};
