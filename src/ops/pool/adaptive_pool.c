#include "ops/pool/adaptive_pool.h"

#include <math.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/pool/pool.h"
#include "ops/elementwise/pointwise.h"

#define MOST_SIDE (INT32_MAX / 4)

static bool channels_last(const cup__call *call)
{
    const cup__adaptive_avg_pool2d_attributes *a = call->attributes;
    const cup__adaptive_avg_pool2d_grad_attributes *grad = call->attributes;
    return call->op->kind & CUP__ADAPTIVE_GRAD ? grad->channels_last : a->channels_last;
}

/* The attributes of both kinds are alike. */
static void read_sides(const cup__call *call, int64_t side[2])
{
    const cup__adaptive_avg_pool2d_attributes *a = call->attributes;
    const cup__adaptive_avg_pool2d_grad_attributes *grad = call->attributes;
    if (call->op->kind & CUP__ADAPTIVE_GRAD) {
        side[0] = grad->height;
        side[1] = grad->width;
        return;
    }
    side[0] = a->size_count > 0 ? a->size[0] : 1;
    side[1] = a->size_count > 1 ? a->size[1] : side[0];
}

cup__adaptive cup__adaptive_of(const cup__call *call)
{
    const cup_tensor *t = call->in[0];
    bool last = channels_last(call), is_grad = call->op->kind & CUP__ADAPTIVE_GRAD;
    int at = last ? 1 : 2;
    cup__adaptive p = {.is_max = call->op->kind & CUP__ADAPTIVE_MAX,
                       .inner = last ? t->shape[3] : 1,
                       .planes = last ? t->shape[0] : t->shape[0] * t->shape[1]};
    read_sides(call, is_grad ? p.in : p.out);
    for (int d = 0; d < 2; d++) {
        (is_grad ? p.out : p.in)[d] = t->shape[at + d];
        if (p.out[d] > 0)
            p.reach[d] = p.in[d] / p.out[d] + (p.in[d] % p.out[d] ? 2 : 0);
    }
    return p;
}

static cup_status infer(cup__call *call)
{
    int64_t side[2];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    CUP_TRY(cup__need_pairs(call, "size"));
    read_sides(call, side);
    for (int d = 0; d < 2; d++) {
        int64_t own = call->in[0]->shape[(channels_last(call) ? 1 : 2) + d];
        if (side[d] < 1 || side[d] > MOST_SIDE || own < 1 || own > MOST_SIDE)
            return cup__call_fail(call, CUP_SHAPE,
                                  "sides of %lld and %lld must be from 1 to 2^29",
                                  (long long)own, (long long)side[d]);
    }
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[channels_last(call) ? 1 : 2] = side[0];
    call->result[0].size[channels_last(call) ? 2 : 3] = side[1];
    return CUP_OK;
}

cup_status cup__adaptive_infer(cup__call *call)
{
    CUP_TRY(infer(call));
    cup__adaptive p = cup__adaptive_of(call);
    if (!p.is_max)
        return CUP_OK;
    if (p.reach[0] > INT32_MAX / p.reach[1])
        return cup__call_fail(call, CUP_SHAPE, "windows of %lld x %lld are too large",
                              (long long)p.reach[0], (long long)p.reach[1]);
    call->result[1] = call->result[0];
    call->result[1].dtype = p.reach[0] * p.reach[1] > 255 ? CUP_I32 : CUP_U8;
    return CUP_OK;
}

cup_status cup__adaptive_grad_infer(cup__call *call)
{
    CUP_TRY(infer(call));
    if (!(call->op->kind & CUP__ADAPTIVE_MAX))
        return CUP_OK;
    cup__shape dy = cup__shape_of(call->in[0]), places = cup__shape_of(call->in[1]);
    if (!cup__shape_equal(&dy, &places))
        return cup__call_fail(call, CUP_SHAPE, "dy and places must have one shape");
    return CUP_OK;
}

/* The elements of window `at` along dimension d, from *first on. */
static int64_t span(const cup__adaptive *p, int d, int64_t at, int64_t *first)
{
    *first = at * p->in[d] / p->out[d];
    return ((at + 1) * p->in[d] + p->out[d] - 1) / p->out[d] - *first;
}

/* The offset, in row-major order, of a value of the image or of the result. */
static int64_t pixel(const cup__adaptive *p, const int64_t side[2], int64_t plane, int64_t row,
                     int64_t column, int64_t k)
{
    return ((plane * side[0] + row) * side[1] + column) * p->inner + k;
}

/* A window and where it stands. */
typedef struct window {
    int64_t plane, row, column, k;
    int64_t top, left, high, wide;
} window;

static window window_of(const cup__adaptive *p, int64_t index)
{
    int64_t pixels = index / p->inner;
    window w = {.k = index % p->inner,
                .column = pixels % p->out[1],
                .row = pixels / p->out[1] % p->out[0],
                .plane = pixels / p->out[1] / p->out[0]};
    w.high = span(p, 0, w.row, &w.top);
    w.wide = span(p, 1, w.column, &w.left);
    return w;
}

cup_status cup__adaptive_specification(cup__call *call)
{
    cup__adaptive p = cup__adaptive_of(call);
    const cup_tensor *x = call->in[0];
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        window w = window_of(&p, i);
        double sum = 0, most = -INFINITY;
        int64_t place = -1;
        for (int64_t e = 0; e < w.high * w.wide; e++) {
            int64_t row = e / w.wide, column = e % w.wide;
            double v = cup__load(x, cup__offset_of(x, pixel(&p, p.in, w.plane, w.top + row,
                                                            w.left + column, w.k)));
            sum += v;
            if (place < 0 || v > most || (isnan(v) && !isnan(most))) {
                most = v;
                place = row * p.reach[1] + column;
            }
        }
        cup__store(call->out[0], i, p.is_max ? most : sum / (double)(w.high * w.wide));
        if (call->out_count > 1)
            cup__pool_place_set(call->out[1], i, place);
    }
    return CUP_OK;
}

cup_status cup__adaptive_grad_specification(cup__call *call)
{
    cup__adaptive p = cup__adaptive_of(call);
    const cup_tensor *dy = call->in[0], *places = call->in_count > 1 ? call->in[1] : NULL;
    cup_tensor *dx = call->out[0];
    double *sums = cup__calloc((size_t)dx->count + 1, sizeof *sums);
    if (!sums)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory for its sums");
    for (int64_t i = 0; i < dy->count; i++) {
        window w = window_of(&p, i);
        double v = cup__load(dy, cup__offset_of(dy, i));
        int64_t place = p.is_max ? cup__pool_place(places, cup__offset_of(places, i)) : 0;
        for (int64_t e = 0; e < w.high * w.wide; e++) {
            int64_t row = e / w.wide, column = e % w.wide;
            int64_t at = pixel(&p, p.in, w.plane, w.top + row, w.left + column, w.k);
            if (!p.is_max)
                sums[at] += v / (double)(w.high * w.wide);
            else if (place == row * p.reach[1] + column)
                sums[at] += v;
        }
    }
    for (int64_t i = 0; i < dx->count; i++)
        cup__store(dx, i, sums[i]);
    cup__free(sums);
    return CUP_OK;
}

/* Rows of a result are independent; a task takes a range of them. */
typedef struct job {
    cup__call *call;
    cup__adaptive p;
    bool failed;
} job;

/* Takes a row of the image, row `i` of the windows, into a row of results. */
static void take_row(const cup__adaptive *p, double *y, int32_t *places, const float *x, int64_t i)
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
                    place[k] = (int32_t)(i * p->reach[1] + j);
                }
            }
    }
}

static void finish_row(const job *j, int64_t task, const double *y, const int32_t *places,
                       float *buffer)
{
    const cup__adaptive *p = &j->p;
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
    const cup__adaptive *p = &j->p;
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
static void spread_row(const cup__call *call, const cup__adaptive *p, double *dx, const float *dy,
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
                         i * p->reach[1] + j)
                    *to += v;
            }
    }
}

/* A row of dx takes from each row of dy whose windows reach it, in order. */
static void run_grad_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__adaptive *p = &j->p;
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
    job j = {.call = call, .p = cup__adaptive_of(call)};
    bool is_grad = call->op->kind & CUP__ADAPTIVE_GRAD;
    int64_t rows = j.p.planes * (is_grad ? j.p.in[0] : j.p.out[0]);
    int64_t work = j.p.in[1] * j.p.inner * (is_grad ? 1 : j.p.reach[0]);
    cup__parallel_for(rows, 16384 / (work + 1) + 1, is_grad ? run_grad_rows : run_rows, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

const cup__impl cup__adaptive_impls[] = {
    {.name = "rows", .place = CUP__CPU, .refuses = cup__pool_cpu_refuses, .run = run},
    {.name = "windows",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 8, 16, 64),
     .refuses = cup__adaptive_cuda_refuses,
     .run = cup__adaptive_cuda},
    {0},
};
