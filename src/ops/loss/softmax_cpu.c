/* Softmax and its kin on all cores, in single precision: along rows, or across TILE lines that
 * lie side by side. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/loss/softmax.h"
#include "tensor/floats.h"

#define LANES 64
#define AHEAD 4096 /* elements, at least, that are fetched before their turn */
#define CHUNK 4096 /* elements summed in single precision before double takes over */
#define TILE 128
#define GRAIN 32768

CUP__WIDE static void max_lanes(float *lanes, const float *x, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++, x += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] = x[k] > lanes[k] || x[k] != x[k] ? x[k] : lanes[k];
}

float cup__row_max(const float *x, int64_t count)
{
    float lanes[LANES];
    for (int k = 0; k < LANES; k++)
        lanes[k] = -INFINITY;
    max_lanes(lanes, x, count / LANES);
    for (int64_t i = count / LANES * LANES, k = 0; i < count; i++, k++)
        lanes[k] = x[i] > lanes[k] || isnan(x[i]) ? x[i] : lanes[k];
    for (int k = 1; k < LANES; k++)
        lanes[0] = lanes[k] > lanes[0] || isnan(lanes[k]) ? lanes[k] : lanes[0];
    return lanes[0];
}

CUP__WIDE static void sum_lanes(float *lanes, const float *x, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += x[i + k];
    for (int k = 0; i < count; i++, k++)
        lanes[k] += x[i];
}

CUP__WIDE static void dot_lanes(float *lanes, const float *x, const float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += x[i + k] * y[i + k];
    for (int k = 0; i < count; i++, k++)
        lanes[k] += x[i] * y[i];
}

/* The largest where nothing is NaN; a NaN shows in the sum of exponentials. */
CUP__FUSED float cup__row_shift(const float *x, int64_t count)
{
    float most[LANES];
    int64_t i = 0;
    for (int k = 0; k < LANES; k++)
        most[k] = -INFINITY;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
    for (int k = 0; i < count; i++, k++)
        most[k] = x[i] > most[k] ? x[i] : most[k];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            most[k] = most[k + width] > most[k] ? most[k + width] : most[k];
    return most[0];
}

/* y becomes the exponentials, whose sum is returned. Meanwhile the caches fetch what lies `ahead`
 * elements on: the row after this one, or a later one. */
CUP__FUSED static float exponentials(float *y, const float *x, int64_t count, float shift,
                                     int64_t ahead)
{
    float sum[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int k = 0; k < LANES; k += 16) {
            __builtin_prefetch((const void *)((uintptr_t)(x + i + k) + (uintptr_t)ahead * 4));
            __builtin_prefetch((const void *)((uintptr_t)(y + i + k) + (uintptr_t)ahead * 4), 1);
        }
        for (int k = 0; k < LANES; k++) {
            float e = cup__exp_below_f32(x[i + k] - shift);
            y[i + k] = e;
            sum[k] += e;
        }
    }
    for (int k = 0; i < count; i++, k++) {
        y[i] = cup__exp_below_f32(x[i] - shift);
        sum[k] += y[i];
    }
    return cup__floats_join(sum, LANES);
}

CUP__WIDE static void subtract(float *y, const float *x, int64_t count, float shift, float log_sum)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = (x[i] - shift) - log_sum;
}

double cup__row_sum(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i += CHUNK) {
        float lanes[LANES] = {0};
        sum_lanes(lanes, x + i, count - i < CHUNK ? count - i : CHUNK);
        sum += (double)cup__floats_join(lanes, LANES);
    }
    return sum;
}

static double row_dot(const float *x, const float *y, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i += CHUNK) {
        float lanes[LANES] = {0};
        dot_lanes(lanes, x + i, y + i, count - i < CHUNK ? count - i : CHUNK);
        sum += (double)cup__floats_join(lanes, LANES);
    }
    return sum;
}

double cup__row_exp(float *y, const float *x, int64_t count, float shift)
{
    float buffer[CHUNK];
    double sum = 0;
    for (int64_t i = 0; i < count; i += CHUNK) {
        int64_t n = count - i < CHUNK ? count - i : CHUNK;
        sum += (double)exponentials(y ? y + i : buffer, x + i, n, shift,
                                    count > AHEAD ? count : AHEAD);
    }
    return sum;
}

static void softmax_row(float *y, const float *x, int64_t count, bool is_log)
{
    float most = cup__row_shift(x, count);
    double sum = cup__row_exp(is_log ? NULL : y, x, count, most);
    if (is_log)
        subtract(y, x, count, most, (float)log(sum));
    else
        cup__floats_scale(y, (float)(1 / sum), count);
}

CUP__WIDE static void slope(float *dx, const float *y, const float *dy, int64_t count, float sum)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = y[i] * (dy[i] - sum);
}

CUP__WIDE static void log_slope(float *dx, const float *y, const float *dy, int64_t count,
                                float sum)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = dy[i] - cup__exp_f32(y[i]) * sum;
}

static void softmax_grad_row(float *dx, const float *y, const float *dy, int64_t count, bool is_log)
{
    float sum = (float)(is_log ? cup__row_sum(dy, count) : row_dot(y, dy, count));
    if (is_log)
        log_slope(dx, y, dy, count, sum);
    else
        slope(dx, y, dy, count, sum);
}

typedef struct job {
    cup__call *call;
    cup__lines lines;
    float *buffers; /* three rows a task; a row is the length, or length * TILE */
    int64_t row, tasks, units;
    bool is_log, is_grad;
} job;

/* Brings `count` lines side by side into rows of the buffer, or back. */
static void gather(float *to, const cup_tensor *t, const cup__lines *l, int64_t first,
                   int64_t count)
{
    float line[TILE];
    for (int64_t k = 0; k < l->length; k++) {
        int64_t at = (first + k * l->inner) * cup_dtype_size(t->dtype);
        cup__load_f32(line, (const char *)t->data + at, t->dtype, count);
        for (int64_t j = 0; j < count; j++)
            to[j * l->length + k] = line[j];
    }
}

static void scatter(cup_tensor *t, const float *from, const cup__lines *l, int64_t first,
                    int64_t count)
{
    float line[TILE];
    for (int64_t k = 0; k < l->length; k++) {
        for (int64_t j = 0; j < count; j++)
            line[j] = from[j * l->length + k];
        cup__store_f32((char *)t->data + (first + k * l->inner) * cup_dtype_size(t->dtype), line,
                       t->dtype, count);
    }
}

static void run_tile(const job *j, int64_t unit, float *buffer)
{
    const cup__lines *l = &j->lines;
    int64_t tiles = (l->inner + TILE - 1) / TILE, column = unit % tiles * TILE;
    int64_t count = l->inner - column < TILE ? l->inner - column : TILE;
    int64_t first = unit / tiles * l->length * l->inner + column;
    float *x = buffer, *y = x + j->row;
    gather(x, j->call->in[0], l, first, count);
    if (j->is_grad)
        gather(y, j->call->in[1], l, first, count);
    for (int64_t i = 0; i < count; i++) {
        float *line = x + i * l->length;
        if (j->is_grad)
            softmax_grad_row(line, line, y + i * l->length, l->length, j->is_log);
        else
            softmax_row(line, line, l->length, j->is_log);
    }
    scatter(j->call->out[0], x, l, first, count);
}

static void run_row(const job *j, int64_t row, float *buffer)
{
    cup_tensor *out = j->call->out[0];
    int64_t length = j->lines.length;
    bool direct = out->dtype == CUP_F32;
    const float *x = cup__floats_of(j->call->in[0], row * length, length, buffer);
    float *y = direct ? (float *)out->data + row * length : buffer + 2 * j->row;
    if (j->is_grad)
        softmax_grad_row(y, x,
                         cup__floats_of(j->call->in[1], row * length, length, buffer + j->row),
                         length, j->is_log);
    else
        softmax_row(y, x, length, j->is_log);
    if (!direct)
        cup__floats_write(out, row * length, 1, y, length);
}

static void run_task(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t task = begin; task < end; task++) {
        float *buffer = j->buffers + task * 3 * j->row;
        int64_t unit = j->units * task / j->tasks, last = j->units * (task + 1) / j->tasks;
        for (; unit < last; unit++)
            if (j->lines.inner == 1)
                run_row(j, unit, buffer);
            else
                run_tile(j, unit, buffer);
    }
}

static cup_status run(cup__call *call, bool is_grad)
{
    job j = {.call = call, .lines = cup__lines_of(call), .is_grad = is_grad};
    bool rows = j.lines.inner == 1;
    j.is_log = call->op->kind == CUP__SOFTMAX_LOG;
    j.row = j.lines.length * (rows ? 1 : TILE);
    j.units = j.lines.outer * (rows ? 1 : (j.lines.inner + TILE - 1) / TILE);
    j.tasks = call->out[0]->count / GRAIN + 1;
    j.tasks = j.tasks > cup__threads() ? cup__threads() : j.tasks;
    j.tasks = j.tasks > j.units ? j.units : j.tasks;
    cup__shape shape = {.dtype = CUP_F32, .ndim = 2, .size = {3 * j.tasks, j.row}};
    cup_tensor *memory = cup__tensor_make(call->c, &shape, "rows");
    if (!memory)
        return call->c->error.status;
    j.buffers = memory->data;
    cup__parallel_for(j.tasks, 1, run_task, &j);
    cup_tensor_free(memory);
    return CUP_OK;
}

cup_status cup__softmax_cpu(cup__call *call)
{
    return run(call, false);
}

cup_status cup__softmax_grad_cpu(cup__call *call)
{
    return run(call, true);
}

const char *cup__softmax_cpu_refuses(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

const cup__impl cup__softmax_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(128, 4096),
     .refuses = cup__softmax_cpu_refuses,
     .run = cup__softmax_cpu},
    {.name = "ring", .place = CUP__CUDA, CUP__THRESHOLDS(256, 4096, 8192, 16384, 32768),
     .refuses = cup__softmax_ring_refuses,
     .run = cup__softmax_ring},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128, 1024, 4096, 8192),
     .refuses = cup__softmax_cuda_refuses,
     .run = cup__softmax_cuda},
    {0},
};
const cup__impl cup__softmax_grad_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(128, 4096),
     .refuses = cup__softmax_cpu_refuses,
     .run = cup__softmax_grad_cpu},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128, 1024, 4096, 8192),
     .refuses = cup__softmax_cuda_refuses,
     .run = cup__softmax_grad_cuda},
    {0},
};
