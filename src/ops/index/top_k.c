#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"
#include "ops/index/order.h"

#define MOST_K 2048       /* that a block sorts in shared memory */
#define LONG (1 << 18)    /* elements of a row that keep more than a block busy */
#define FEW 8             /* rows */
#define THREADS 512       /* as in top_k.cu */
#define FEW_K 256         /* that a bound on the k-th key serves */
#define FEW_ROOM 1024     /* keys up to that bound */
#define ROW_K 12          /* that a warp finds in a row of its registers */
#define ROW_LENGTH 2048

static const cup__top_k_attributes *attributes_of(const cup__call *call)
{
    return call->attributes;
}

static int axis_of(const cup__call *call)
{
    int axis = attributes_of(call)->axis;
    return axis < 0 ? axis + call->in[0]->ndim : axis;
}

static cup_status infer(cup__call *call)
{
    const cup__top_k_attributes *a = call->attributes;
    int axis;
    CUP_TRY(cup__need_ordered(call, 0));
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    if (a->k < 0 || a->k > call->in[0]->shape[axis])
        return cup__call_fail(call, CUP_ARGUMENT, "k is %lld, but the axis has %lld elements",
                              (long long)a->k, (long long)call->in[0]->shape[axis]);
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[axis] = a->k;
    call->result[1] = call->result[0];
    call->result[1].dtype = CUP_I64;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup__top_k_attributes *a = call->attributes;
    return cup__order_specification(call, axis_of(call), a->k, !a->smallest);
}

/* All sorted, and the first k copied. */
static cup_status by_sort(cup__call *call, cup_tensor *x, cup_tensor *values, cup_tensor *indices,
                          bool descending)
{
    cup__shape shape = cup__shape_of(x), places = shape, part = cup__shape_of(values);
    places.dtype = CUP_I64;
    cup_tensor *all = cup__tensor_make(call->c, &shape, "top_k");
    cup_tensor *all_places = cup__tensor_make(call->c, &places, "top_k");
    cup_status status = call->c->error.status;
    if (status == CUP_OK)
        status = cup__sort_rows(call, x, all, all_places, descending);
    cup_tensor *from = status == CUP_OK ? cup__tensor_view(all, &part, all->stride, 0) : NULL;
    part.dtype = CUP_I64;
    cup_tensor *from_places =
        status == CUP_OK ? cup__tensor_view(all_places, &part, all_places->stride, 0) : NULL;
    if (status == CUP_OK)
        status = cup__copy_to(call->c, values, from);
    if (status == CUP_OK)
        status = cup__copy_to(call->c, indices, from_places);
    cup_tensor *used[] = {from, from_places, all, all_places};
    for (int i = 0; i < 4; i++)
        cup_tensor_free(used[i]);
    return status;
}

/* A warp for each row. */
static cup_status by_rows(cup__call *call, cup_tensor *x, cup_tensor *values, cup_tensor *indices,
                          bool descending)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int32_t length = (int32_t)x->shape[x->ndim - 1], k = (int32_t)attributes_of(call)->k;
    int64_t rows = x->count / length, items = 1;
    while (items * 32 < length)
        items *= 2;
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"DESCENDING", descending}, {"ITEMS", items}};
    cup__grid grid = {.x = (rows + 3) / 4, .threads = 128};
    return cup__launch(gpu, cup__kernel_get(gpu, "top_rows.cu", "top_rows", knobs, 3), grid,
                       CUP__ARG(x->data), CUP__ARG(values->data), CUP__ARG(indices->data),
                       CUP__ARG(rows), CUP__ARG(length), CUP__ARG(k));
}

static cup_status by_search(cup__call *call, cup_tensor *x, cup_tensor *values,
                            cup_tensor *indices, bool descending)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t length = x->shape[x->ndim - 1];
    int32_t k = (int32_t)attributes_of(call)->k, room = 2;
    int size = (int)cup_dtype_size(x->dtype), vec = 16 / size;
    bool few = k > 0 && k <= FEW_K && length < INT32_MAX / 2;
    while (room < k || (few && room < FEW_ROOM))
        room *= 2;
    while (vec > 1 && (length % vec || (uintptr_t)x->data % (uintptr_t)(vec * size)))
        vec /= 2;
    cup__knob knobs[] = {
        {"CUP_T", x->dtype}, {"DESCENDING", descending}, {"FEW", few}, {"VEC", few ? vec : 1}};
    cup__grid grid = {.x = x->count / length, .threads = THREADS,
                      .shared = room * ((size == 8 ? 8 : 4) + 4)};
    return cup__launch(gpu, cup__kernel_get(gpu, "top_k.cu", "top_k", knobs, 4), grid,
                       CUP__ARG(x->data), CUP__ARG(values->data), CUP__ARG(indices->data),
                       CUP__ARG(length), CUP__ARG(k), CUP__ARG(room));
}

static const char *sort_refuses(const cup__call *call)
{
    int64_t length = call->in[0]->shape[axis_of(call)];
    if (length > INT32_MAX)
        return "places in a row are 32 bits wide";
    return length && call->in[0]->count / length > 65535 ? "it takes 65535 rows" : NULL;
}

static const char *search_refuses(const cup__call *call)
{
    int64_t length = call->in[0]->shape[axis_of(call)], k = attributes_of(call)->k;
    if (k > MOST_K)
        return "so many do not fit into shared memory";
    if (length > INT32_MAX)
        return "places in a row are 32 bits wide";
    return length >= LONG && call->in[0]->count / length < FEW
               ? "a block for each of a few long rows leaves the card idle"
               : NULL;
}

static const char *rows_refuses(const cup__call *call)
{
    int64_t k = attributes_of(call)->k;
    if (k < 1 || k > ROW_K || cup_dtype_size(call->in[0]->dtype) > 4)
        return "a warp takes few elements, of at most 4 bytes";
    return call->in[0]->shape[axis_of(call)] > ROW_LENGTH ? "a row does not fit into registers"
                                                          : NULL;
}

static cup_status run_rows(cup__call *call)
{
    return cup__order_rows(call, axis_of(call), !attributes_of(call)->smallest, by_rows);
}

static cup_status run_search(cup__call *call)
{
    return cup__order_rows(call, axis_of(call), !attributes_of(call)->smallest, by_search);
}

static cup_status run_sort(cup__call *call)
{
    return cup__order_rows(call, axis_of(call), !attributes_of(call)->smallest, by_sort);
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__order_gradient(g, ((const cup__top_k_attributes *)g->attributes)->axis);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64),
     .refuses = rows_refuses, .run = run_rows},
    {.name = "search", .place = CUP__CUDA, CUP__THRESHOLDS(2048),
     .refuses = search_refuses, .run = run_search},
    {.name = "sort", .place = CUP__CUDA, CUP__THRESHOLDS(2048),
     .refuses = sort_refuses, .run = run_sort},
    {0},
};
#define TOP(k, axis, smallest) &(const cup__top_k_attributes){k, axis, smallest}
static const cup__sample samples[] = {
    {"7", TOP(3, 0, false)},      {"3x5", TOP(1, 1, true)},       {"4x3x5", TOP(2, 1, false)},
    {"0x5", TOP(2, 1, false)},    {"2x6", TOP(0, -1, false)},     {"33x40", TOP(40, -1, true)},
    {"5x2500", TOP(50, -1, false)}, {"900x3", TOP(33, 0, false)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"1024x50304", TOP(50, 1, false)},
                                    {"32768x1024", TOP(8, 1, false)},
                                    {"1048576", TOP(100, 0, false)},
                                    {NULL, NULL}};

const cup__op cup__op_top_k = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {CUP__DTYPES_ORDERED},
};
