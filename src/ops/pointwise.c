#include "ops/pointwise.h"

#include <string.h>

#include "base/parallel.h"
#include "ops/loop.h"

#define CHUNK 1024 /* elements whose operands fit the first-level cache together */

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
const cup__sample cup__binary_bench[] = {{"1048576 1048576", NULL},
                                         {"67108864 67108864", NULL},
                                         {"32768x3072 3072", NULL},
                                         {NULL, NULL}};

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
    return cup__broadcast_shape(call, 0, call->in_count, &call->result[0]);
}

typedef struct job {
    cup__call *call;
    cup__loop loop;
    cup__real real;
    int64_t inner, chunks; /* of a row */
    bool plain;            /* through the specification, element by element */
} job;

/* One chunk, element by element: any dtype, any stride. */
static void run_elements(const job *j, const int64_t *offset, int64_t count)
{
    const cup__pointwise *kind = j->call->op->pointwise;
    int last = j->loop.ndim - 1, inputs = j->call->in_count;
    for (int64_t i = 0; i < count; i++) {
        double x[CUP__POINTWISE_MOST];
        int64_t n[CUP__POINTWISE_MOST];
        for (int k = 0; k < inputs; k++) {
            int64_t at = offset[k + 1] + i * j->loop.stride[k + 1][last];
            if (j->real == CUP__REAL_I64 && j->call->in[k]->dtype == CUP_I64)
                n[k] = ((const int64_t *)j->call->in[k]->data)[at];
            else
                n[k] = (int64_t)(x[k] = cup__load(j->call->in[k], at));
        }
        cup_tensor *out = j->call->out[0];
        int64_t to = offset[0] + i * j->loop.stride[0][last];
        if (j->real != CUP__REAL_I64 || !kind->i64)
            cup__store(out, to, kind->f64(x, j->call->attributes));
        else if (out->dtype == CUP_I64)
            ((int64_t *)out->data)[to] = kind->i64(n, j->call->attributes);
        else
            cup__store(out, to, (double)kind->i64(n, j->call->attributes));
    }
}

/* The operand's elements as floats in a row: where they are, or brought into the buffer. */
static const float *floats(const cup_tensor *t, int64_t offset, int64_t stride, int64_t count,
                           float *buffer)
{
    const char *at = (const char *)t->data + offset * cup_dtype_size(t->dtype);
    if (stride == 1 && t->dtype == CUP_F32)
        return (const float *)(const void *)at;
    if (stride == 1) {
        cup__load_f32(buffer, at, t->dtype, count);
    } else if (stride == 0) {
        float value = (float)cup__load(t, offset);
        for (int64_t i = 0; i < count; i++)
            buffer[i] = value;
    } else {
        for (int64_t i = 0; i < count; i++)
            buffer[i] = (float)cup__load(t, offset + i * stride);
    }
    return buffer;
}

static void run_floats(const job *j, const int64_t *offset, int64_t count)
{
    float buffers[CUP__POINTWISE_MOST + 1][CHUNK];
    const float *x[CUP__POINTWISE_MOST];
    const cup__call *call = j->call;
    int last = j->loop.ndim - 1;
    for (int k = 0; k < call->in_count; k++)
        x[k] = floats(call->in[k], offset[k + 1], j->loop.stride[k + 1][last], count, buffers[k]);
    cup_tensor *out = call->out[0];
    int64_t stride = j->loop.stride[0][last];
    bool direct = stride == 1 && out->dtype == CUP_F32;
    float *y = direct ? (float *)out->data + offset[0] : buffers[CUP__POINTWISE_MOST];
    call->op->pointwise->f32(y, x, count, call->attributes);
    if (direct)
        return;
    if (stride == 1) {
        char *to = (char *)out->data + offset[0] * cup_dtype_size(out->dtype);
        cup__store_f32(to, y, out->dtype, count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        cup__store(out, offset[0] + i * stride, (double)y[i]);
}

static void run_chunks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    int last = j->loop.ndim - 1;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t row = chunk / j->chunks, start = chunk % j->chunks * CHUNK;
        int64_t count = j->inner - start < CHUNK ? j->inner - start : CHUNK;
        int64_t offset[CUP__LOOP_MOST];
        for (int k = 0; k < j->loop.tensors; k++)
            offset[k] = cup__loop_offset(&j->loop, k, row) + start * j->loop.stride[k][last];
        if (j->plain)
            run_elements(j, offset, count);
        else
            run_floats(j, offset, count);
    }
}

static cup_status run_job(cup__call *call, bool plain)
{
    job j = {.call = call, .real = cup__pointwise_real(call)};
    cup__loop_make(&j.loop, call->out[0], call->in, call->in_count);
    j.inner = j.loop.size[j.loop.ndim - 1];
    j.chunks = (j.inner + CHUNK - 1) / CHUNK;
    j.plain = plain || j.real != CUP__REAL_F32 || !call->op->pointwise->f32;
    int64_t rows = call->out[0]->count / j.inner;
    int64_t grain = 16 * CHUNK / (j.inner < CHUNK ? j.inner : CHUNK);
    cup__parallel_for(rows * j.chunks, grain, run_chunks, &j);
    return CUP_OK;
}

cup_status cup__pointwise_specification(cup__call *call)
{
    return run_job(call, true);
}

cup_status cup__pointwise_cpu(cup__call *call)
{
    return run_job(call, false);
}

const cup__impl cup__pointwise_impls[] = {
    {.name = "vector", .place = CUP__CPU, .strided = true, .run = cup__pointwise_cpu},
    {0},
};
