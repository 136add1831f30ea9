#include "ops/index/embedding.h"

#include <string.h>

#include "base/parallel.h"
#include "dispatch/attributes.h"

#define GRAIN 65536 /* bytes */

static cup_status infer(cup__call *call)
{
    const cup_tensor *table = call->in[0], *ids = call->in[1];
    CUP_TRY(cup__need_ndim(call, 0, 2, 2));
    CUP_TRY(cup__need_index(call, 1));
    CUP_TRY(cup__need_ndim(call, 1, 0, CUP_MAX_DIMS - 1));
    cup__shape *shape = &call->result[0];
    *shape = cup__shape_of(ids);
    shape->dtype = table->dtype;
    shape->size[shape->ndim++] = table->shape[1];
    return CUP_OK;
}

int64_t cup__id_of(const cup_tensor *ids, int64_t index)
{
    int64_t at = cup__offset_of(ids, index);
    return ids->dtype == CUP_I64 ? ((const int64_t *)ids->data)[at]
                                 : ((const int32_t *)ids->data)[at];
}

cup_status cup__ids_check(cup__call *call, const cup_tensor *ids, int64_t rows)
{
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t id = cup__id_of(ids, i);
        if (id < 0 || id >= rows)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "id %lld at position %lld is none of the %lld rows of the table",
                                  (long long)id, (long long)i, (long long)rows);
    }
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *table = call->in[0], *ids = call->in[1];
    int64_t width = table->shape[1];
    CUP_TRY(cup__ids_check(call, ids, table->shape[0]));
    for (int64_t i = 0; i < ids->count; i++)
        for (int64_t k = 0; k < width; k++) {
            int64_t at = cup__id_of(ids, i) * table->stride[0] + k * table->stride[1];
            cup__store(call->out[0], i * width + k, cup__load(table, at));
        }
    return CUP_OK;
}

static void copy_rows(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    const cup_tensor *table = call->in[0];
    int64_t bytes = table->shape[1] * cup_dtype_size(table->dtype);
    for (int64_t i = begin; i < end; i++)
        memcpy((char *)call->out[0]->data + i * bytes,
               (const char *)table->data + cup__id_of(call->in[1], i) * bytes, (size_t)bytes);
}

static cup_status run(cup__call *call)
{
    const cup_tensor *table = call->in[0];
    CUP_TRY(cup__ids_check(call, call->in[1], table->shape[0]));
    int64_t bytes = table->shape[1] * cup_dtype_size(table->dtype);
    cup__parallel_for(call->in[1]->count, GRAIN / (bytes + 1) + 1, copy_rows, call);
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__embedding_grad(g->c, g->d_out[0], g->in[1], g->in_shape[0].size[0]);
    return CUP_OK;
}

/* The rows that are taken, not the table. */
static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *ids = call->in[1], *y = call->out[0];
    *flops = 0;
    *bytes = (double)(ids->count * cup_dtype_size(ids->dtype)) +
             2.0 * (double)(y->count * cup_dtype_size(y->dtype));
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(8, 256, 1024), .run = run},
    {.name = "rows",
     .place = CUP__CUDA, CUP__THRESHOLDS(8, 256, 1024), .refuses = cup__embedding_cuda_refuses,
     .run = cup__embedding_cuda},
    {0},
};
static int64_t indices(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    return i == 1 ? in[0]->shape[0] : 0;
}

static const cup__sample samples[] = {
    {"60x5 7", NULL},       {"64x8 3x4", NULL},    {"60x1 ()", NULL},      {"70x768 33", NULL},
    {"61x1025 2x5", NULL},  {"60x5 0", NULL},      {"60x3 200", NULL},
    {"50257x16 1000", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"50304x768 32x1024", NULL}, {"128256x4096 8192", NULL},
                                    {NULL, NULL}};

const cup__op cup__op_embedding = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .cost = cost,
    .domain = {{0}, {0, 60}},
    .indices = indices,
    .bench_indices = 50257,
    .in_dtypes = {0, CUP__DTYPES_INDEX},
};
