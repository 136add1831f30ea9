#include "cuda/cuda.h"
#include "kernels/divide.cuh"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"

#define SIDE 64 /* as in cast_transpose.cu */
#define THREADS 256

static cup_status infer(cup__call *call)
{
    const cup__cast_transpose_attributes *a = call->attributes;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 2, CUP_MAX_DIMS));
    if (!cup_dtype_size(a->dtype) || !cup__dtype_is_float(a->dtype))
        return cup__call_fail(call, CUP_DTYPE, "it converts to a float dtype");
    cup__shape *y = &call->result[0], *transposed = &call->result[1];
    *y = cup__shape_of(call->in[0]);
    y->dtype = a->dtype;
    *transposed = *y;
    transposed->size[y->ndim - 1] = y->size[y->ndim - 2];
    transposed->size[y->ndim - 2] = y->size[y->ndim - 1];
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    int64_t columns = x->shape[x->ndim - 1], rows = x->shape[x->ndim - 2];
    for (int64_t i = 0; i < x->count; i++) {
        int64_t matrix = i / columns / rows, row = i / columns % rows, column = i % columns;
        double value = cup__load(x, cup__offset_of(x, i));
        cup__store(call->out[0], i, value);
        cup__store(call->out[1], (matrix * columns + column) * rows + row, value);
    }
    return CUP_OK;
}

/* A cast, and a copy of what it gave. */
static cup_status run(cup__call *call)
{
    cup_tensor *y = call->out[0];
    int last = y->ndim - 1;
    cup__cast_attributes a = {((const cup__cast_transpose_attributes *)call->attributes)->dtype};
    if (!cup__op_call(call->c, &cup__rows[CUP__OP_cast], call->in, 1, &a, &y))
        return call->c->error.status;
    cup__shape shape = cup__shape_of(call->out[1]);
    int64_t stride[CUP_MAX_DIMS];
    for (int i = 0; i <= last; i++)
        stride[i] = y->stride[i == last ? last - 1 : i == last - 1 ? last : i];
    cup_tensor *view = cup__tensor_view(y, &shape, stride, 0);
    cup_status status = view ? cup__copy_to(call->c, call->out[1], view) : call->c->error.status;
    cup_tensor_free(view);
    return status;
}

/* The matrices' tiles, across and down. */
static void tiles_of(const cup_tensor *x, int64_t *across, int64_t *down)
{
    *across = (x->shape[x->ndim - 1] + SIDE - 1) / SIDE;
    *down = (x->shape[x->ndim - 2] + SIDE - 1) / SIDE;
}

static const char *refuses(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    int64_t across, down;
    tiles_of(x, &across, &down);
    int64_t matrix = x->shape[x->ndim - 1] * x->shape[x->ndim - 2];
    return matrix && x->count / matrix * across * down > INT32_MAX
               ? "it numbers tiles in 32 bits"
               : NULL;
}

static cup_status run_tiles(cup__call *call)
{
    const cup_tensor *x = call->in[0], *y = call->out[0], *transposed = call->out[1];
    int64_t columns = x->shape[x->ndim - 1], rows = x->shape[x->ndim - 2], across, down;
    int size = (int)cup_dtype_size(x->dtype), to = (int)cup_dtype_size(y->dtype);
    int larger = size > to ? size : to, vec = 16 / larger, group = to < 4 ? 4 / to : 1;
    while (vec > 1 && (columns % vec || (uintptr_t)x->data % (uintptr_t)(vec * size) ||
                       (uintptr_t)y->data % (uintptr_t)(vec * to)))
        vec /= 2;
    bool words = rows % group == 0 && (uintptr_t)transposed->data % (uintptr_t)(group * to) == 0;
    tiles_of(x, &across, &down);
    divisor by_across = divisor_of(across), by_down = divisor_of(down);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[] = {
        {"CUP_T", x->dtype}, {"CUP_TO", y->dtype}, {"VEC", vec}, {"WORDS", words}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "cast_transpose.cu", "cast_transpose_fwd", knobs, 4);
    cup__grid grid = {.x = x->count / (rows * columns) * across * down, .threads = THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(x->data), CUP__ARG(y->data),
                       CUP__ARG(transposed->data), CUP__ARG(rows), CUP__ARG(columns),
                       CUP__ARG(by_across), CUP__ARG(by_down));
}

static cup_status gradient(cup__grad *g)
{
    cup_dtype dtype = g->in_shape[0].dtype;
    int64_t axes[CUP_MAX_DIMS];
    int ndim = g->in_shape[0].ndim;
    for (int i = 0; i < ndim; i++)
        axes[i] = i == ndim - 1 ? ndim - 2 : i == ndim - 2 ? ndim - 1 : i;
    cup_tensor *dx = g->d_out[0] ? cup_cast(g->c, g->d_out[0], dtype) : NULL;
    if (g->d_out[1]) {
        cup_tensor *turned =
            cup_cast(g->c, cup_permute(g->c, g->d_out[1], axes, ndim), dtype);
        dx = dx ? cup_add(g->c, dx, turned) : turned;
    }
    g->d_in[0] = dx;
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "tiles", .place = CUP__CUDA, CUP__THRESHOLDS(32, 64, 128),
     .refuses = refuses, .run = run_tiles},
    {.name = "casts", .place = CUP__CUDA, .run = run},
    {.name = "casts", .place = CUP__CPU, .run = run},
    {0},
};
#define TO(name) &(const cup__cast_transpose_attributes){CUP_##name}
static const cup__sample samples[] = {
    {"1x1", TO(BF16)},      {"3x5", TO(F16)},      {"2x64x64", TO(BF16)}, {"0x5", TO(BF16)},
    {"65x130", TO(F8E4M3)}, {"70x200", TO(BF16)},  {"3x2x9x7", TO(F32)},  {"128x96", TO(F8E5M2)},
    {"66x33", TO(F64)},     {"129x64", TO(F16)},   {NULL, NULL}};
static const cup__sample bench[] = {
    {"8192x8192", TO(BF16)}, {"8192x8192", TO(F8E4M3)}, {"32768x768", TO(BF16)}, {NULL, NULL}};

const cup__op cup__op_cast_transpose = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = impls,
    .samples = samples,
    .bench = bench,
};
