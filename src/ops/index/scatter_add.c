#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/index/gather.h"
#include "ops/index/order.h"

#define THREADS 256              /* as in gather.cu */
#define PART 1024               /* of a run that a block adds up; as in gather.cu */
#define MOST ((int64_t)1 << 30) /* elements that are put in order at once */

static int axis_of(const cup__call *call)
{
    return ((const cup__scatter_add_attributes *)call->attributes)->axis;
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    if (x->dtype != CUP_I32 && x->dtype != CUP_I64)
        CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, 2));
    CUP_TRY(cup__need_indices(call, 1, 0, axis_of(call)));
    cup__shape indices = cup__shape_of(call->in[1]), src = cup__shape_of(call->in[2]);
    if (!cup__shape_equal(&indices, &src))
        return cup__call_fail(call, CUP_SHAPE, "there must be one index for each element of src");
    call->result[0] = cup__shape_of(x);
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *ids = call->in[1], *src = call->in[2];
    cup_tensor *y = call->out[0];
    cup__along from = cup__along_of(src, axis_of(call)), to = cup__along_of(x, axis_of(call));
    cup_tensor *wide = cup_tensor_new(call->c, CUP_F64, y->ndim, y->shape);
    bool whole = x->dtype == CUP_I64;
    if (!wide)
        return call->c->error.status;
    for (int64_t i = 0; i < y->count; i++)
        if (whole)
            ((int64_t *)y->data)[i] = ((const int64_t *)x->data)[cup__offset_of(x, i)];
        else
            ((double *)wide->data)[i] = cup__load(x, cup__offset_of(x, i));
    for (int64_t i = 0; i < src->count; i++) {
        int64_t id, k = i % from.inner, outer = i / from.inner / from.size;
        CUP_TRY(cup__index_at(call, ids, i, to.size, &id));
        int64_t at = (outer * to.size + id) * to.inner + k, offset = cup__offset_of(src, i);
        if (whole)
            ((int64_t *)y->data)[at] += ((const int64_t *)src->data)[offset];
        else
            ((double *)wide->data)[at] += cup__load(src, offset);
    }
    for (int64_t i = 0; i < y->count && !whole; i++)
        cup__store(y, i, ((double *)wide->data)[i]);
    cup_tensor_free(wide);
    return CUP_OK;
}

typedef struct scattering {
    cup_tensor *targets, *sorted, *numbers, *parts;
} scattering;

/* Adds s->targets->count elements of src, from `first` on. */
static cup_status scatter_part(cup__call *call, const scattering *s, int64_t first)
{
    const cup_tensor *ids = call->in[1], *src = call->in[2];
    cup_tensor *y = call->out[0];
    cup__along to = cup__along_of(call->in[0], axis_of(call));
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t count = s->targets->count, none = y->count, length = src->shape[to.axis];
    int32_t none32 = (int32_t)none;
    bool small = s->targets->dtype == CUP_I32;
    const char *from = (const char *)src->data + first * cup_dtype_size(src->dtype);
    cup__knob knobs[] = {{"CUP_T", src->dtype},
                         {"CUP_ID", ids->dtype},
                         {"TARGET", s->targets->dtype},
                         {"SCATTER", 1}};
    cup__grid grid = {.x = (count + THREADS - 1) / THREADS, .threads = THREADS};
    CUP_TRY(cup__launch(gpu, cup__kernel_get(gpu, "gather.cu", "scatter_targets", knobs, 4), grid,
                        CUP__ARG(ids->data), CUP__ARG(s->targets->data), CUP__ARG(first),
                        CUP__ARG(count), CUP__ARG(to.size), CUP__ARG(length), CUP__ARG(to.inner),
                        small ? CUP__ARG(none32) : CUP__ARG(none)));
    CUP_TRY(cup__sort_rows(call, s->targets, s->sorted, s->numbers, false));
    cup__grid by_part = {.x = count / PART, .threads = THREADS};
    CUP_TRY(cup__launch(gpu, cup__kernel_get(gpu, "gather.cu", "scatter_parts", knobs, 4), by_part,
                        CUP__ARG(from), CUP__ARG(s->sorted->data), CUP__ARG(s->numbers->data),
                        CUP__ARG(s->parts->data), small ? CUP__ARG(none32) : CUP__ARG(none)));
    return cup__launch(gpu, cup__kernel_get(gpu, "gather.cu", "scatter_fwd", knobs, 4), grid,
                       CUP__ARG(from), CUP__ARG(s->sorted->data), CUP__ARG(s->numbers->data),
                       CUP__ARG(s->parts->data), CUP__ARG(y->data), CUP__ARG(count),
                       small ? CUP__ARG(none32) : CUP__ARG(none));
}

static cup_status run_cuda(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    int64_t all = call->in[2]->count;
    cup_dtype dtype = x->count < INT32_MAX ? CUP_I32 : CUP_I64;
    CUP_TRY(call->c->device->calls->copy(call->c->device, call->out[0]->data, x->data,
                                         (size_t)(x->count * cup_dtype_size(x->dtype))));
    for (int64_t first = 0; first < all && call->c->error.status == CUP_OK; first += MOST) {
        int64_t count = all - first < MOST ? all - first : MOST;
        cup__shape targets = {dtype, 1, {count}}, numbers = {CUP_I64, 1, {count}};
        cup__shape parts = {cup_dtype_size(x->dtype) == 8 ? x->dtype : CUP_F32, 1,
                            {count / PART + 1}};
        scattering s = {cup__tensor_make(call->c, &targets, "scatter_add"),
                        cup__tensor_make(call->c, &targets, "scatter_add"),
                        cup__tensor_make(call->c, &numbers, "scatter_add"),
                        cup__tensor_make(call->c, &parts, "scatter_add")};
        if (call->c->error.status == CUP_OK)
            scatter_part(call, &s, first);
        cup_tensor_free(s.targets);
        cup_tensor_free(s.sorted);
        cup_tensor_free(s.numbers);
        cup_tensor_free(s.parts);
    }
    return call->c->error.status;
}

static cup_status gradient(cup__grad *g)
{
    const cup__scatter_add_attributes *a = g->attributes;
    g->d_in[0] = g->d_out[0];
    if (g->wanted[2])
        g->d_in[2] = cup_gather(g->c, g->d_out[0], g->in[1], a->axis);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "sorted", .place = CUP__CUDA, CUP__THRESHOLDS(64, 1024), .run = run_cuda}, {0}};
#define ALONG(axis) &(const cup__scatter_add_attributes){axis}
static const cup__sample samples[] = {
    {"7 3 3", ALONG(0)},              {"6x5 9x5 9x5", ALONG(0)}, {"3x8 3x5 3x5", ALONG(1)},
    {"2x6x3 2x4x3 2x4x3", ALONG(-2)}, {"0x6 0x2 0x2", ALONG(1)}, {"6x5 0x5 0x5", ALONG(0)},
    {"4x100 4x3000 4x3000", ALONG(1)}, {"9 20000 20000", ALONG(0)}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"1048576 8388608 8388608", ALONG(0)}, {"8192x4096 8192x4096 8192x4096", ALONG(1)},
    {NULL, NULL}};

const cup__op cup__op_scatter_add = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{0}, {0, 6}, {-0.5, 1}},
    .indices = cup__indices_along,
    .bench_indices = 4096,
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX, CUP__DTYPES_INDEX,
                  CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX},
    .tolerance = 16, /* sums of many elements */
};
