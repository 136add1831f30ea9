#include "ops/index/gather.h"

#include <string.h>

#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/index/embedding.h"

#define THREADS 256 /* as in gather.cu */

cup__along cup__along_of(const cup_tensor *t, int axis)
{
    cup__along a = {axis < 0 ? axis + t->ndim : axis, 1, 1, 1};
    for (int i = 0; i < t->ndim; i++)
        *(i < a.axis ? &a.outer : i == a.axis ? &a.size : &a.inner) *= t->shape[i];
    return a;
}

_Static_assert(sizeof(cup__gather_attributes) == sizeof(cup__index_select_attributes) &&
                   sizeof(cup__gather_attributes) == sizeof(cup__scatter_add_attributes) &&
                   sizeof(cup__gather_attributes) == sizeof(int),
               "what takes indices along an axis has no other attribute");

int64_t cup__indices_along(cup_tensor *const *in, int i, const void *attributes)
{
    return i == 1 ? cup__along_of(in[0], *(const int *)attributes).size : 0;
}

cup_status cup__need_indices(cup__call *call, int i, int j, int axis)
{
    const cup_tensor *indices = call->in[i], *x = call->in[j];
    CUP_TRY(cup__need_index(call, i));
    CUP_TRY(cup__need_axis(call, j, axis, &axis));
    CUP_TRY(cup__need_ndim(call, i, x->ndim, x->ndim));
    for (int d = 0; d < x->ndim; d++)
        if (d != axis && indices->shape[d] != x->shape[d])
            return cup__call_fail(call, CUP_SHAPE,
                                  "inputs %d and %d differ in dimension %d; only sizes along axis "
                                  "%d may differ",
                                  j + 1, i + 1, d, axis);
    if (indices->count > 0 && x->shape[axis] == 0)
        return cup__call_fail(call, CUP_ARGUMENT, "there is nothing along the axis to point at");
    return CUP_OK;
}

cup_status cup__index_at(cup__call *call, const cup_tensor *indices, int64_t at, int64_t size,
                         int64_t *out)
{
    *out = cup__id_of(indices, at);
    if (*out >= 0 && *out < size)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT,
                          "index %lld at position %lld is none of the %lld along the axis",
                          (long long)*out, (long long)at, (long long)size);
}

void cup__move_element(cup_tensor *to, int64_t at, const cup_tensor *from, int64_t offset)
{
    size_t size = (size_t)cup_dtype_size(to->dtype);
    memcpy((char *)to->data + at * (int64_t)size, (const char *)from->data + offset * (int64_t)size,
           size);
}

cup_status cup__gather_launch(cup__call *call, const char *entry, const cup_tensor *x,
                              cup_tensor *y, cup__along along, int64_t length, int vec,
                              int64_t count)
{
    const cup_tensor *ids = call->in[1];
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"CUP_ID", ids->dtype}, {"VEC", vec}};
    int64_t inner = along.inner / vec;
    cup__grid grid = {.x = (count + THREADS - 1) / THREADS, .threads = THREADS};
    return cup__launch(gpu, cup__kernel_get(gpu, "gather.cu", entry, knobs, 3), grid,
                       CUP__ARG(x->data), CUP__ARG(ids->data), CUP__ARG(y->data), CUP__ARG(count),
                       CUP__ARG(along.size), CUP__ARG(length), CUP__ARG(inner));
}

static int axis_of(const cup__call *call)
{
    return ((const cup__gather_attributes *)call->attributes)->axis;
}

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_indices(call, 1, 0, axis_of(call)));
    call->result[0] = cup__shape_of(call->in[1]);
    call->result[0].dtype = call->in[0]->dtype;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *ids = call->in[1];
    cup__along from = cup__along_of(x, axis_of(call)), to = cup__along_of(ids, axis_of(call));
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t id, k = i % to.inner, outer = i / to.inner / to.size;
        CUP_TRY(cup__index_at(call, ids, i, from.size, &id));
        int64_t at = (outer * from.size + id) * from.inner + k;
        cup__move_element(call->out[0], i, x, cup__offset_of(x, at));
    }
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    cup_tensor *y = call->out[0];
    cup__along from = cup__along_of(call->in[0], axis_of(call));
    return cup__gather_launch(call, "gather_fwd", call->in[0], y, from, y->shape[from.axis], 1,
                              y->count);
}

static cup_status gradient(cup__grad *g)
{
    cup__shape shape = g->in_shape[0];
    cup_tensor *zeros = cup__full(g->c, &shape, 0);
    g->d_in[0] = cup_scatter_add(g->c, zeros, g->in[1], g->d_out[0],
                                 ((const cup__gather_attributes *)g->attributes)->axis);
    return CUP_OK;
}

static const cup__impl impls[] = {{.name = "elements", .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 8, 256), .run = run_cuda}, {0}};
#define ALONG(axis) &(const cup__gather_attributes){axis}
static const cup__sample samples[] = {
    {"7 3", ALONG(0)},           {"6x5 9x5", ALONG(0)},   {"3x8 3x5", ALONG(1)},
    {"2x6x3 2x4x3", ALONG(-2)},  {"0x6 0x2", ALONG(1)},   {"6x5 0x5", ALONG(0)},
    {"64x100 64x300", ALONG(1)}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x4096 8192x4096", ALONG(1)}, {NULL, NULL}};

const cup__op cup__op_gather = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{0}, {0, 6}},
    .indices = cup__indices_along,
    .in_dtypes = {CUP__DTYPES_MOVED, CUP__DTYPES_INDEX},
};
