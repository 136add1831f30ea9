#include "ops/recurrent/cells.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cupola/ops.h"
#include "dispatch/loop.h"

#define GRAIN 4096 /* elements that are worth a thread */

static const cup__cell *cell_of(const cup__call *call)
{
    static const cup__cell *const cells[] = {&cup__cell_lstm, &cup__cell_lstm_slopes,
                                             &cup__cell_gru, &cup__cell_gru_slopes};
    return cells[call->op->kind];
}

static int64_t width_of(const cup__call *call)
{
    return call->in[0]->shape[1] / cell_of(call)->in[0];
}

cup_status cup__cell_infer(cup__call *call)
{
    const cup__cell *cell = cell_of(call);
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 2, 2));
    int64_t rows = call->in[0]->shape[0], width = width_of(call);
    for (int i = 0; i < call->in_count; i++) {
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        const cup_tensor *t = call->in[i];
        if (t && (t->ndim != 2 || t->shape[0] != rows || t->shape[1] != cell->in[i] * width))
            return cup__call_fail(call, CUP_SHAPE, "input %d must be [%lld,%lld]", i + 1,
                                  (long long)rows, (long long)(cell->in[i] * width));
    }
    if (width > INT32_MAX / CELLS_MOST)
        return cup__call_fail(call, CUP_SHAPE, "a width of %lld is too large", (long long)width);
    for (int i = 0; i < 3 && cell->out[i]; i++)
        call->result[i] = (cup__shape){call->in[0]->dtype, 2, {rows, cell->out[i] * width}};
    return CUP_OK;
}

cup_status cup__cell_specification(cup__call *call)
{
    const cup__cell *cell = cell_of(call);
    int64_t width = width_of(call);
    for (int64_t at = 0; at < call->in[0]->shape[0] * width; at++) {
        double x[CELLS_MOST], y[CELLS_MOST];
        int64_t row = at / width, column = at % width;
        for (int i = 0, k = 0; i < 4; i++)
            for (int gate = 0; gate < cell->in[i]; gate++) {
                const cup_tensor *t = i < call->in_count ? call->in[i] : NULL;
                int64_t from = (row * cell->in[i] + gate) * width + column;
                x[k++] = t ? cup__load(t, cup__offset_of(t, from)) : 0;
            }
        cell->f64(x, y);
        for (int i = 0, k = 0; i < 3; i++)
            for (int gate = 0; gate < cell->out[i]; gate++)
                cup__store(call->out[i], (row * cell->out[i] + gate) * width + column, y[k++]);
    }
    return CUP_OK;
}

typedef struct job {
    const cup__call *call;
    bool failed;
} job;

static void run_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__call *call = j->call;
    const cup__cell *cell = cell_of(call);
    int64_t width = width_of(call), size = cup_dtype_size(call->in[0]->dtype);
    cup_dtype dtype = call->in[0]->dtype;
    float *buffer = cup__calloc((size_t)(2 * CELLS_MOST * width), sizeof *buffer);
    if (!buffer) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    const float *from[CELLS_MOST];
    float *to[CELLS_MOST];
    for (int k = 0; k < CELLS_MOST; k++) {
        from[k] = buffer + k * width;
        to[k] = buffer + (CELLS_MOST + k) * width;
    }
    for (int64_t row = begin; row < end; row++) {
        for (int i = 0, k = 0; i < 4 && cell->in[i]; k += cell->in[i++])
            if (i < call->in_count && call->in[i])
                cup__load_f32(buffer + k * width, (const char *)call->in[i]->data +
                                                      row * cell->in[i] * width * size,
                              dtype, cell->in[i] * width);
        cell->f32(from, to, width);
        for (int i = 0, k = 0; i < 3 && cell->out[i]; k += cell->out[i++])
            cup__store_f32((char *)call->out[i]->data + row * cell->out[i] * width * size, to[k],
                           dtype, cell->out[i] * width);
    }
    cup__free(buffer);
}

static cup_status run(cup__call *call)
{
    job j = {call, false};
    cup__parallel_for(call->in[0]->shape[0], GRAIN / (width_of(call) + 1) + 1, run_rows, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    const cup__cell *cell = cell_of(call);
    int64_t width = width_of(call), size = cup_dtype_size(call->in[0]->dtype);
    cells_call c = {.count = call->in[0]->shape[0] * width, .width = (int)width};
    for (int i = 0, k = 0; i < 4; i++)
        for (int gate = 0; gate < cell->in[i]; gate++, k++) {
            const cup_tensor *t = i < call->in_count ? call->in[i] : NULL;
            c.x[k] = t ? (const char *)t->data + gate * width * size : NULL;
            c.x_row[k] = cell->in[i];
        }
    for (int i = 0, k = 0; i < 3; i++)
        for (int gate = 0; gate < cell->out[i]; gate++, k++) {
            c.y[k] = (char *)call->out[i]->data + gate * width * size;
            c.y_row[k] = cell->out[i];
        }
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype}, {"CELL", call->op->kind}};
    cup__grid grid = {.x = (c.count + CELLS_THREADS - 1) / CELLS_THREADS, .threads = CELLS_THREADS};
    return cup__launch(gpu, cup__kernel_get(gpu, "cells.cu", "cells_fwd", knobs, 2), grid,
                       CUP__ARG(c));
}

const cup__impl cup__cell_impls[] = {
    {.name = "elements", .place = CUP__CUDA, CUP__THRESHOLDS(256), .run = run_cuda},
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(8, 16), .refuses = cup__refuses_f64,
     .run = run},
    {0}};

cup_tensor *cup__cell_gate(cup_context *c, cup_tensor *t, int i, int gates)
{
    if (!t)
        return NULL;
    int64_t width = t->shape[1] / gates;
    return cup_slice(c, t, (int64_t[]){0, i * width}, 2, (int64_t[]){t->shape[0], width}, 2);
}

cup_tensor *cup__cell_slope(cup_context *c, cup_tensor *s)
{
    return cup_sub(c, s, cup_square(c, s));
}

cup_tensor *cup__cell_join(cup__grad *g, int k, cup_tensor *const *gates, int count)
{
    for (int i = 0; i < count; i++)
        if (!gates[i])
            return NULL;
    return cup_cast(g->c, cup_concat(g->c, gates, count, 1), g->in_shape[k].dtype);
}
