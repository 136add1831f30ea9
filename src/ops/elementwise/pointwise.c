/* What holds for elementwise ops wherever they run: dtypes, shapes, samples. */
#include "ops/elementwise/pointwise.h"

#include "cupola/ops.h"
#include "dispatch/loop.h"

const cup__sample cup__unary_samples[] = {{"0x5", NULL},      {"()", NULL},     {"7", NULL},
                                          {"3x5", NULL},      {"2x3x1025", NULL}, {"4096", NULL},
                                          {"33x1000", NULL},  {NULL, NULL}};
const cup__sample cup__unary_bench[] = {
    {"1048576", NULL}, {"4096x1024", NULL}, {"8192x4096", NULL}, {"32768x3072", NULL},
    {NULL, NULL}};
const cup__sample cup__binary_samples[] = {
    {"7 7", NULL},         {"3x5 5", NULL},       {"3x1 1x5", NULL},       {"() 4x3", NULL},
    {"2x3x1025 3x1", NULL}, {"0x5 5", NULL},      {"4096 4096", NULL},     {"2x1x7x3 5x1x3", NULL},
    {"33x1000 1000", NULL}, {"33x1000 33x1", NULL}, {NULL, NULL}};
const cup__sample cup__binary_few_samples[] = {
    {"7 7", NULL},   {"3x1 1x5", NULL}, {"() 4x3", NULL}, {"2x3x1025 3x1", NULL},
    {"0x5 5", NULL}, {"4096 4096", NULL}, {NULL, NULL}};
const cup__sample cup__binary_bench[] = {{"1048576 1048576", NULL},
                                         {"67108864 67108864", NULL},
                                         {"32768x3072 3072", NULL},
                                         {NULL, NULL}};

const cup__sample cup__grad_samples[] = {
    {"7 7", NULL}, {"3x5 3x5", NULL}, {"2x1025 2x1025", NULL}, {NULL, NULL}};
const cup__sample cup__grad_bench[] = {
    {"4096x1024 4096x1024", NULL}, {"32768x3072 32768x3072", NULL}, {NULL, NULL}};
const cup__sample cup__binary_grad_samples[] = {
    {"7 7 7", NULL}, {"5 3x5 3x5", NULL}, {"2x1 2x1025 2x1025", NULL}, {NULL, NULL}};
const cup__sample cup__binary_grad_bench[] = {{"32768x3072 32768x3072 32768x3072", NULL},
                                              {NULL, NULL}};

cup_status cup__no_slope(cup__grad *g)
{
    for (int i = 0; i < g->in_count; i++) {
        const cup__shape *shape = &g->in_shape[i];
        if (g->wanted[i])
            g->d_in[i] = cup_broadcast(
                g->c, cup__full(g->c, &(cup__shape){.dtype = shape->dtype}, 0), shape->ndim,
                shape->size);
    }
    return CUP_OK;
}

static bool is_small(cup_dtype dtype)
{
    return dtype == CUP_BOOL || dtype == CUP_U8 || dtype == CUP_I8;
}

cup__real cup__pointwise_real(const cup__call *call)
{
    bool any_float = false, any_f64 = false, any_index = false;
    for (int i = 0; i <= call->in_count; i++) {
        cup_dtype dtype = i < call->in_count ? call->in[i]->dtype : call->result[0].dtype;
        any_float |= cup__dtype_is_float(dtype);
        any_f64 |= dtype == CUP_F64;
        any_index |= !cup__dtype_is_float(dtype) && !is_small(dtype);
    }
    if (!any_float)
        return CUP__REAL_I64;
    return any_f64 || any_index ? CUP__REAL_F64 : CUP__REAL_F32;
}

cup_status cup__pointwise_infer(cup__call *call)
{
    const cup__pointwise *kind = call->op->pointwise;
    for (int i = 0; i < call->in_count; i++) {
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        if (!kind->i64)
            CUP_TRY(cup__need_float(call, i));
    }
    bool gives_bool = kind->gives == CUP__GIVES_BOOL;
    call->result[0].dtype = gives_bool ? CUP_BOOL : call->in[0]->dtype;
    CUP_TRY(cup__broadcast_shape(call, 0, call->in_count, &call->result[0]));
    if (kind->f64_second)
        call->result[1] = call->result[0];
    return CUP_OK;
}

const cup__impl cup__pointwise_impls[] = {
    {.name = "vector", .place = CUP__CUDA, CUP__THRESHOLDS(8, 16, 32, 1024, 2048),
     .strided = true, .run = cup__pointwise_cuda},
    {.name = "vector", .place = CUP__CPU, CUP__THRESHOLDS(8, 16, 32, 1024, 2048),
     .strided = true, .run = cup__pointwise_cpu},
    {0},
};

cup_status cup__unary_composed(cup__grad *g, cup_tensor *at,
                               cup_tensor *(*slope)(cup_context *c, cup_tensor *at))
{
    cup_context *c = g->c;
    cup_tensor *s = slope(c, cup__widen(c, at)), *dy = cup__widen(c, g->d_out[0]);
    g->d_in[0] = cup_cast(c, cup_mul(c, dy, s), g->in_shape[0].dtype);
    return c->error.status;
}
