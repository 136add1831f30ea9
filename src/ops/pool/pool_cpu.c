/* Pooling on the CPU, row by row in single precision. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "ops/pool/pool.h"

/* Rows of a result are independent; a task takes a range of them. */
typedef struct job {
    cup__call *call;
    cup__pooling p;
    bool failed;
} job;

/* One tap of a row of windows: `count` results, whose elements lie `step` apart in x. */
CUP__WIDE static void add_tap(float *y, const float *x, int64_t count, int64_t step)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i * step];
}

CUP__WIDE static void take_larger(float *y, int32_t *places, const float *x, int64_t count,
                                  int64_t step, int32_t place)
{
    for (int64_t i = 0; i < count; i++) {
        float v = x[i * step];
        bool larger = places[i] < 0 || v > y[i] || (v != v && y[i] == y[i]);
        y[i] = larger ? v : y[i];
        places[i] = larger ? place : places[i];
    }
}

/* The results of a row whose tap `j` lies in the image: from *first on. */
static int64_t columns_of(const cup__pooling *p, int64_t j, int64_t *first)
{
    int64_t offset = j * p->dilation[1] - p->padding[1], stride = p->stride[1];
    int64_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
    int64_t end = offset < p->in[1] ? (p->in[1] - offset + stride - 1) / stride : 0;
    end = end < p->out[1] ? end : p->out[1];
    *first = begin;
    return end > begin ? end - begin : 0;
}

/* Takes one row of the image into a row of results. */
static void take_row(const cup__pooling *p, float *y, int32_t *places, const float *x, int64_t i)
{
    for (int64_t j = 0; j < p->window[1]; j++) {
        int64_t first, count = columns_of(p, j, &first), inner = p->inner;
        int64_t w = first * p->stride[1] + j * p->dilation[1] - p->padding[1];
        int32_t place = (int32_t)(i * p->window[1] + j);
        int64_t runs = inner == 1 || p->stride[1] == 1 ? 1 : count;
        int64_t length = runs == 1 ? count * inner : inner, step = inner == 1 ? p->stride[1] : 1;
        for (int64_t r = 0; r < runs && count; r++) {
            int64_t at = (first + r) * inner;
            const float *from = x + (w + r * p->stride[1]) * inner;
            if (p->is_max)
                take_larger(y + at, places + at, from, length, step, place);
            else
                add_tap(y + at, from, length, step);
        }
    }
}

static void finish_row(const job *j, int64_t task, float *y, const int32_t *places)
{
    const cup__pooling *p = &j->p;
    cup_tensor *out = j->call->out[0];
    int64_t width = p->out[1] * p->inner, row = task % p->out[0];
    for (int64_t i = 0; i < p->out[1] && !p->is_max; i++) {
        float divisor = (float)cup__pool_divisor(p, row, i);
        for (int64_t k = 0; k < p->inner; k++)
            y[i * p->inner + k] /= divisor;
    }
    cup__store_f32((char *)out->data + task * width * cup_dtype_size(out->dtype), y, out->dtype,
                   width);
    for (int64_t i = 0; i < width && j->call->out_count > 1; i++)
        cup__pool_place_set(j->call->out[1], task * width + i, places[i]);
}

static void run_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__pooling *p = &j->p;
    const cup_tensor *x = j->call->in[0];
    int64_t width = p->out[1] * p->inner, in_width = p->in[1] * p->inner;
    float *y = cup__malloc((size_t)(2 * width + in_width) * sizeof *y);
    if (!y) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    int32_t *places = (int32_t *)(void *)(y + width);
    float *buffer = y + 2 * width;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task % p->out[0], plane = task / p->out[0];
        int64_t top, high = cup__pool_span(p, 0, row, &top);
        for (int64_t i = 0; i < width; i++)
            y[i] = p->is_max ? -INFINITY : 0;
        memset(places, 0xff, (size_t)width * sizeof *places);
        for (int64_t i = top; i < top + high; i++) {
            int64_t h = row * p->stride[0] - p->padding[0] + i * p->dilation[0];
            int64_t at = (plane * p->in[0] + h) * in_width * cup_dtype_size(x->dtype);
            cup__load_f32(buffer, (const char *)x->data + at, x->dtype, in_width);
            take_row(p, y, places, buffer, i);
        }
        finish_row(j, task, y, places);
    }
    cup__free(y);
}

/* What row `row` of dy adds to the row of dx that is tap `i` of its windows. */
static void spread_row(const cup__call *call, const cup__pooling *p, float *dx, const float *dy,
                       int64_t task, int64_t i)
{
    int64_t inner = p->inner, width = p->out[1] * inner, row = task % p->out[0];
    for (int64_t j = 0; j < p->window[1]; j++) {
        int64_t first, count = columns_of(p, j, &first);
        for (int64_t c = first; c < first + count; c++) {
            int64_t w = c * p->stride[1] + j * p->dilation[1] - p->padding[1];
            float divisor = p->is_max ? 1 : (float)cup__pool_divisor(p, row, c);
            for (int64_t k = 0; k < inner; k++) {
                float v = dy[c * inner + k];
                if (!p->is_max)
                    dx[w * inner + k] += v / divisor;
                else if (cup__pool_place(call->in[1], task * width + c * inner + k) ==
                         i * p->window[1] + j)
                    dx[w * inner + k] += v;
            }
        }
    }
}

/* A row of dx takes from each row of dy whose windows reach it, in order. */
static void run_grad_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__pooling *p = &j->p;
    const cup_tensor *dy = j->call->in[0];
    cup_tensor *dx = j->call->out[0];
    int64_t size = cup_dtype_size(dy->dtype);
    int64_t width = p->out[1] * p->inner, in_width = p->in[1] * p->inner;
    float *sum = cup__malloc((size_t)(width + in_width) * sizeof *sum), *buffer = sum + in_width;
    if (!sum) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t task = begin; task < end; task++) {
        int64_t h = task % p->in[0], plane = task / p->in[0];
        memset(sum, 0, (size_t)in_width * sizeof *sum);
        for (int64_t i = p->window[0]; i-- > 0;) {
            int64_t from = h + p->padding[0] - i * p->dilation[0], row = from / p->stride[0];
            if (from < 0 || from % p->stride[0] || row >= p->out[0])
                continue;
            int64_t at = plane * p->out[0] + row;
            cup__load_f32(buffer, (const char *)dy->data + at * width * size, dy->dtype, width);
            spread_row(j->call, p, sum, buffer, at, i);
        }
        cup__store_f32((char *)dx->data + task * in_width * size, sum, dx->dtype, in_width);
    }
    cup__free(sum);
}

static cup_status run(cup__call *call, void (*rows)(int64_t, int64_t, void *), int64_t count,
                      int64_t work)
{
    job j = {.call = call, .p = cup__pooling_of(call)};
    cup__parallel_for(count, 65536 / (work + 1) + 1, rows, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

cup_status cup__pool_cpu(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    return run(call, run_rows, p.planes * p.out[0], p.in[1] * p.inner * p.window[0]);
}

cup_status cup__pool_grad_cpu(cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    return run(call, run_grad_rows, p.planes * p.in[0], p.in[1] * p.inner * p.window[0]);
}

const cup__impl cup__pool_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(8, 32), .refuses = cup__refuses_f64,
     .run = cup__pool_cpu},
    {.name = "windows", .place = CUP__CUDA, CUP__THRESHOLDS(2, 4, 8, 16, 32),
     .refuses = cup__pool_cuda_refuses, .run = cup__pool_cuda},
    {0},
};
const cup__impl cup__pool_grad_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(8, 32), .refuses = cup__refuses_f64,
     .run = cup__pool_grad_cpu},
    {.name = "gather", .place = CUP__CUDA, CUP__THRESHOLDS(2, 4, 8, 16, 32),
     .refuses = cup__pool_cuda_refuses, .run = cup__pool_grad_cuda},
    {0},
};
