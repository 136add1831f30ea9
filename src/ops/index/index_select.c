#include "dispatch/attributes.h"
#include "ops/index/gather.h"

static int axis_of(const cup__call *call)
{
    return ((const cup__index_select_attributes *)call->attributes)->axis;
}

static cup_status infer(cup__call *call)
{
    int axis;
    CUP_TRY(cup__need_axis(call, 0, axis_of(call), &axis));
    CUP_TRY(cup__need_index(call, 1));
    CUP_TRY(cup__need_ndim(call, 1, 1, 1));
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[axis] = call->in[1]->count;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *ids = call->in[1];
    cup__along from = cup__along_of(x, axis_of(call));
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t id;
        CUP_TRY(cup__index_at(call, ids, i, from.size, &id));
        for (int64_t line = 0; line < from.outer * from.inner; line++) {
            int64_t outer = line / from.inner, k = line % from.inner;
            cup__move_element(call->out[0], (outer * ids->count + i) * from.inner + k, x,
                              cup__offset_of(x, (outer * from.size + id) * from.inner + k));
        }
    }
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    const cup_tensor *x = call->in[0], *y = call->out[0];
    cup__along from = cup__along_of(x, axis_of(call));
    int size = (int)cup_dtype_size(x->dtype), vec = 16 / size;
    uintptr_t address = (uintptr_t)x->data | (uintptr_t)y->data;
    while (vec > 1 && (from.inner % vec || address % (uintptr_t)(vec * size)))
        vec /= 2;
    return cup__gather_launch(call, "select_fwd", x, call->out[0], from,
                              call->in[1]->count, vec, y->count / vec);
}

/* The gradient of an embedding, with the axis in front. */
static cup_status gradient(cup__grad *g)
{
    const cup__index_select_attributes *a = g->attributes;
    cup__shape shape = g->in_shape[0];
    int ndim = shape.ndim, axis = a->axis < 0 ? a->axis + ndim : a->axis;
    int64_t front[CUP_MAX_DIMS], back[CUP_MAX_DIMS], size[CUP_MAX_DIMS], flat[2] = {1, 1};
    for (int i = 0; i < ndim; i++) {
        front[i] = i == 0 ? axis : i <= axis ? i - 1 : i;
        back[front[i]] = i;
    }
    flat[0] = g->out_shape[0].size[axis];
    for (int i = 0; i < ndim; i++) {
        size[i] = shape.size[front[i]];
        flat[1] *= i ? size[i] : 1;
    }
    cup_tensor *dy = cup_permute(g->c, g->d_out[0], front, ndim);
    cup_tensor *rows = cup_reshape(g->c, dy, 2, flat);
    cup_tensor *dx = cup__embedding_grad(g->c, rows, g->in[1], shape.size[axis]);
    g->d_in[0] = cup_permute(g->c, cup_reshape(g->c, dx, ndim, size), back, ndim);
    return CUP_OK;
}

static const cup__impl impls[] = {{.name = "vectors", .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 8, 256), .run = run_cuda}, {0}};
#define ALONG(axis) &(const cup__index_select_attributes){axis}
static const cup__sample samples[] = {
    {"7 3", ALONG(0)},           {"6x5 9", ALONG(0)},   {"3x8 5", ALONG(1)},
    {"2x6x8 4", ALONG(-2)},      {"0x6 2", ALONG(1)},   {"6x5 0", ALONG(0)},
    {"64x100x16 300", ALONG(1)}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x4096 8192", ALONG(0)},
                                    {"64x1024x768 1024", ALONG(1)},
                                    {NULL, NULL}};

const cup__op cup__op_index_select = {
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
