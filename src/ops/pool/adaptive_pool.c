/* Adaptive pooling on the CPU, row by row with sums in double: windows may be large. */
#include <math.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "ops/elementwise/pointwise.h"
#include "ops/pool/pool.h"

/* The elements of window `at` along dimension d, from *first on. */
static int64_t span(const cup__pooling *p, int d, int64_t at, int64_t *first)
{
    int64_t within;
    *first = cup__pool_start(p, d, at);
    return cup__pool_span(p, d, at, &within);
}

/* Rows of a result are independent; a task takes a range of them. */
typedef struct job {
    cup__call *call;
    cup__pooling p;
    bool failed;
} job;

/* Takes a row of the image, row `i` of the windows, into a row of results. */
static void take_row(const cup__pooling *p, double *y, int32_t *places, const float *x, int64_t i)
{
    for (int64_t column = 0; column < p->out[1]; column++) {
        int64_t left, wide = span(p, 1, column, &left), inner = p->inner;
        double *to = y + column * inner;
        int32_t *place = places + column * inner;
        for (int64_t j = 0; j < wide; j++)
            for (int64_t k = 0; k < inner; k++) {
                double v = (double)x[(left + j) * inner + k];
                if (!p->is_max) {
                    to[k] += v;
                } else if (place[k] < 0 || v > to[k] || (isnan(v) && !isnan(to[k]))) {
                    to[k] = v;
                    place[k] = (int32_t)(i * p->window[1] + j);
                }
            }
    }
}

static void finish_row(const job *j, int64_t task, const double *y, const int32_t *places,
                       float *buffer)
{
    const cup__pooling *p = &j->p;
    cup_tensor *out = j->call->out[0];
    int64_t width = p->out[1] * p->inner, first, high = span(p, 0, task % p->out[0], &first);
    for (int64_t i = 0; i < width; i++) {
        int64_t wide = span(p, 1, i / p->inner, &first);
        buffer[i] = (float)(p->is_max ? y[i] : y[i] / (double)(high * wide));
        if (j->call->out_count > 1)
            cup__pool_place_set(j->call->out[1], task * width + i, places[i]);
    }
    cup__store_f32((char *)out->data + task * width * cup_dtype_size(out->dtype), buffer,
                   out->dtype, width);
}

static void run_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__pooling *p = &j->p;
    const cup_tensor *x = j->call->in[0];
    int64_t width = p->out[1] * p->inner, in_width = p->in[1] * p->inner;
    int64_t most = width > in_width ? width : in_width;
    double *y = cup__malloc((size_t)width * 12 + (size_t)most * sizeof(float));
    if (!y) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    int32_t *places = (int32_t *)(void *)(y + width);
    float *buffer = (float *)(void *)(places + width);
    for (int64_t task = begin; task < end; task++) {
        int64_t top, high = span(p, 0, task % p->out[0], &top);
        for (int64_t i = 0; i < width; i++) {
            y[i] = 0;
            places[i] = -1;
        }
        for (int64_t i = 0; i < high; i++) {
            int64_t at = (task / p->out[0] * p->in[0] + top + i) * in_width;
            cup__load_f32(buffer, (const char *)x->data + at * cup_dtype_size(x->dtype), x->dtype,
                          in_width);
            take_row(p, y, places, buffer, i);
        }
        finish_row(j, task, y, places, buffer);
    }
    cup__free(y);
}

/* What row `task` of dy, row `i` of whose windows this is, adds to a row of dx. */
static void spread_row(const cup__call *call, const cup__pooling *p, double *dx, const float *dy,
                       int64_t task, int64_t i, int64_t high)
{
    int64_t inner = p->inner, width = p->out[1] * inner;
    for (int64_t column = 0; column < p->out[1]; column++) {
        int64_t left, wide = span(p, 1, column, &left);
        for (int64_t j = 0; j < wide; j++)
            for (int64_t k = 0; k < inner; k++) {
                double v = (double)dy[column * inner + k], *to = dx + (left + j) * inner + k;
                if (!p->is_max)
                    *to += v / (double)(high * wide);
                else if (cup__pool_place(call->in[1], task * width + column * inner + k) ==
                         i * p->window[1] + j)
                    *to += v;
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
    int64_t most = width > in_width ? width : in_width;
    double *sum = cup__malloc((size_t)in_width * sizeof *sum + (size_t)most * sizeof(float));
    if (!sum) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    float *buffer = (float *)(void *)(sum + in_width);
    for (int64_t task = begin; task < end; task++) {
        int64_t h = task % p->in[0], first = h * p->out[0] / p->in[0];
        int64_t last = ((h + 1) * p->out[0] - 1) / p->in[0];
        for (int64_t i = 0; i < in_width; i++)
            sum[i] = 0;
        for (int64_t row = first; row <= last; row++) {
            int64_t top, high = span(p, 0, row, &top), at = task / p->in[0] * p->out[0] + row;
            cup__load_f32(buffer, (const char *)dy->data + at * width * size, dy->dtype, width);
            spread_row(j->call, p, sum, buffer, at, h - top, high);
        }
        for (int64_t i = 0; i < in_width; i++)
            buffer[i] = (float)sum[i];
        cup__store_f32((char *)dx->data + task * in_width * size, buffer, dx->dtype, in_width);
    }
    cup__free(sum);
}

static cup_status run(cup__call *call)
{
    job j = {.call = call, .p = cup__pooling_of(call)};
    bool is_grad = call->op->kind & CUP__POOL_GRAD;
    int64_t rows = j.p.planes * (is_grad ? j.p.in[0] : j.p.out[0]);
    int64_t work = j.p.in[1] * j.p.inner * (is_grad ? 1 : j.p.window[0]);
    cup__parallel_for(rows, 16384 / (work + 1) + 1, is_grad ? run_grad_rows : run_rows, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

const cup__impl cup__adaptive_impls[] = {
    {.name = "rows", .place = CUP__CPU, .refuses = cup__refuses_f64, .run = run},
    {.name = "windows",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 8, 16, 64),
     .refuses = cup__adaptive_cuda_refuses,
     .run = cup__adaptive_cuda},
    {0},
};
