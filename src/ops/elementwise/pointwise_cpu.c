/* Elementwise ops on the CPU: rows in chunks over all cores, in floats where that is exact enough,
 * else element by element. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "dispatch/loop.h"
#include "ops/elementwise/pointwise.h"

#define CHUNK 1024 /* elements whose operands fit the first-level cache together */

typedef struct job {
    cup__call *call;
    cup__loop loop;
    cup__real real;
    int64_t inner, chunks; /* of a row */
    bool plain;            /* through the specification, element by element */
} job;

/* The low bits of an integer, as C narrows it. */
static void store_integer(cup_tensor *t, int64_t offset, int64_t value)
{
    if (t->dtype == CUP_I64)
        ((int64_t *)t->data)[offset] = value;
    else if (t->dtype == CUP_I32)
        ((int32_t *)t->data)[offset] = (int32_t)(uint32_t)(uint64_t)value;
    else if (t->dtype == CUP_BOOL)
        ((uint8_t *)t->data)[offset] = value != 0;
    else
        ((uint8_t *)t->data)[offset] = (uint8_t)(uint64_t)value;
}

/* An element on its way to `to`. An i64 of more bits than a double has is rounded to odd where it
 * is rounded again, to a shorter float, so that it is right then. */
static double load_for(const cup_tensor *t, int64_t offset, cup_dtype to)
{
    double value = cup__load(t, offset);
    if (t->dtype != CUP_I64 || to == CUP_F64 || fabs(value) < 0x1p53)
        return value;
    int64_t exact = ((const int64_t *)t->data)[offset];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (bits & 1 || (fabs(value) < 0x1p63 && (int64_t)value == exact))
        return value;
    bool away = value >= 0x1p63 || (value > 0 ? (int64_t)value > exact : (int64_t)value < exact);
    bits += away ? (uint64_t)-1 : 1;
    memcpy(&value, &bits, sizeof value);
    return value;
}

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
                x[k] = load_for(j->call->in[k], at, j->call->out[0]->dtype);
            if (j->real == CUP__REAL_I64 && j->call->in[k]->dtype != CUP_I64)
                n[k] = (int64_t)x[k];
        }
        cup_tensor *out = j->call->out[0];
        int64_t to = offset[0] + i * j->loop.stride[0][last];
        if (j->real != CUP__REAL_I64 || !kind->i64)
            cup__store(out, to, kind->f64(x, j->call->attributes));
        else
            store_integer(out, to, kind->i64(n, j->call->attributes));
        if (kind->f64_second)
            cup__store(j->call->out[1], to, kind->f64_second(x, j->call->attributes));
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

/* Computes a row where it belongs, or in the buffer first. */
static void write_floats(const cup__call *call, cup_tensor *out,
                         void (*f32)(float *, const float *const *, int64_t, const double *),
                         const float *const *x, int64_t offset, int64_t stride, int64_t count,
                         float *buffer)
{
    bool direct = stride == 1 && out->dtype == CUP_F32;
    float *y = direct ? (float *)out->data + offset : buffer;
    f32(y, x, count, call->attributes);
    if (direct)
        return;
    if (stride == 1) {
        char *to = (char *)out->data + offset * cup_dtype_size(out->dtype);
        cup__store_f32(to, y, out->dtype, count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        cup__store(out, offset + i * stride, (double)y[i]);
}

static void run_floats(const job *j, const int64_t *offset, int64_t count)
{
    float buffers[CUP__POINTWISE_MOST + 1][CHUNK];
    const float *x[CUP__POINTWISE_MOST];
    const cup__call *call = j->call;
    int last = j->loop.ndim - 1;
    for (int k = 0; k < call->in_count; k++)
        x[k] = floats(call->in[k], offset[k + 1], j->loop.stride[k + 1][last], count, buffers[k]);
    const cup__pointwise *kind = call->op->pointwise;
    int64_t stride = j->loop.stride[0][last];
    write_floats(call, call->out[0], kind->f32, x, offset[0], stride, count,
                 buffers[CUP__POINTWISE_MOST]);
    if (kind->f32_second)
        write_floats(call, call->out[1], kind->f32_second, x, offset[0], stride, count,
                     buffers[CUP__POINTWISE_MOST]);
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
