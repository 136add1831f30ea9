/* Layernorm and its kin on all cores, a row at a time in single precision. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/stream.h"
#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#define LANES 64
#define CHUNK 4096    /* elements summed in single precision before double takes over */
#define FAR 8         /* squared distance of pivot and mean, in variances: look again */
#define ROW_BLOCK 64  /* rows whose dgamma and dbeta are summed in single precision */

/* Sums of x - shift and of its square, `count` at most CHUNK. */
CUP__WIDE static void moments_of_chunk(const float *x, int64_t count, float shift, double *sum,
                                       double *squares)
{
    float first[LANES] = {0}, second[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float d = x[i + k] - shift;
            first[k] += d;
            second[k] += d * d;
        }
    for (int k = 0; i < count; i++, k++) {
        float d = x[i] - shift;
        first[k] += d;
        second[k] += d * d;
    }
    *sum += (double)cup__floats_join(first, LANES);
    *squares += (double)cup__floats_join(second, LANES);
}

static void moments(const float *x, int64_t count, float shift, double *sum, double *squares)
{
    *sum = *squares = 0;
    for (int64_t i = 0; i < count; i += CHUNK)
        moments_of_chunk(x + i, count - i < CHUNK ? count - i : CHUNK, shift, sum, squares);
}

/* The mean comes in two parts: x - mean is exact when they are close, and `rest` repairs what the
 * rounding of a large mean took away. */
CUP__WIDE static void scale_row(float *y, const float *x, int64_t count, float mean, float rest,
                                float rstd, const float *gamma, const float *beta)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = ((x[i] - mean) - rest) * rstd * gamma[i] + beta[i];
}

CUP__WIDE static void add_row(float *sum, const float *x, const float *residual, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] = x[i] + residual[i];
}

typedef struct forward {
    cup__layernorm n;
    const float *gamma, *beta; /* ones and zeros when left out */
    float *buffers;            /* four rows a task */
    int64_t tasks;
    bool stream;               /* results go around the caches */
} forward;

static float *place_of(cup_tensor *t, int64_t row, int64_t width, float *buffer)
{
    return t->dtype == CUP_F32 ? (float *)t->data + row * width : buffer;
}

static void put_row(cup_tensor *t, int64_t row, int64_t width, const float *from)
{
    if (t->dtype != CUP_F32)
        cup__store_f32((char *)t->data + row * width * cup_dtype_size(t->dtype), from, t->dtype,
                       width);
}

/* Where a row of a result is made, and how it gets to its place. */
static float *made_at(const forward *f, cup_tensor *t, int64_t row, float *buffer)
{
    return f->stream ? buffer : place_of(t, row, f->n.width, buffer);
}

static void deliver(const forward *f, cup_tensor *t, int64_t row, const float *made, float *spare)
{
    if (!f->stream) {
        put_row(t, row, f->n.width, made);
        return;
    }
    size_t bytes = (size_t)(f->n.width * cup_dtype_size(t->dtype));
    if (t->dtype != CUP_F32)
        cup__store_f32(spare, made, t->dtype, f->n.width);
    cup__stream((char *)t->data + (size_t)row * bytes, t->dtype == CUP_F32 ? made : spare, bytes);
}

/* The sums are taken around the row's first element, and once more around the mean where that is so
 * far away that the variance would drown. */
static void statistics(const forward *f, const float *x, double *mean, double *var)
{
    double width = (double)f->n.width, pivot = f->n.centred ? (double)x[0] : 0, sum, squares;
    moments(x, f->n.width, (float)pivot, &sum, &squares);
    double shift = f->n.centred ? sum / width : 0;
    *var = squares / width - shift * shift;
    if (f->n.centred && !(shift * shift <= FAR * *var)) {
        pivot = (double)(float)(pivot + shift);
        moments(x, f->n.width, (float)pivot, &sum, &squares);
        shift = sum / width;
        *var = squares / width - shift * shift;
    }
    *mean = pivot + shift;
}

static void forward_row(const forward *f, int64_t row, float *buffer)
{
    const cup__layernorm *n = &f->n;
    float *second = buffer + n->width, *third = second + n->width, *spare = third + n->width;
    const float *x = cup__floats_of(n->x, row * n->width, n->width, buffer);
    if (n->sum) {
        float *sum = made_at(f, n->sum, row, third);
        add_row(sum, x, cup__floats_of(n->residual, row * n->width, n->width, second), n->width);
        deliver(f, n->sum, row, sum, spare);
        if (n->sum->dtype != CUP_F32) /* rounded, as the caller and backward see it */
            cup__round_f32(sum, n->sum->dtype, n->width);
        x = sum;
    }
    double mean, var;
    statistics(f, x, &mean, &var);
    double rstd = 1 / sqrt(var + n->eps);
    float near = (float)mean, *y = made_at(f, n->y, row, second);
    scale_row(y, x, n->width, near, (float)(mean - (double)near), (float)rstd, f->gamma, f->beta);
    deliver(f, n->y, row, y, spare);
    if (n->mean)
        ((float *)n->mean->data)[row] = near;
    if (n->rstd)
        ((float *)n->rstd->data)[row] = (float)rstd;
}

/* The tasks of a loop over rows each have buffers of their own. */
static void forward_task(int64_t begin, int64_t end, void *user)
{
    const forward *f = user;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = f->n.rows * task / f->tasks, last = f->n.rows * (task + 1) / f->tasks;
        for (; row < last; row++)
            forward_row(f, row, f->buffers + task * 4 * f->n.width);
    }
    if (f->stream)
        cup__stream_end();
}

/* A vector as floats, all `missing` when it was left out. */
static void load_vector(float *to, const cup_tensor *t, int64_t count, float missing)
{
    if (t)
        cup__load_f32(to, t->data, t->dtype, count);
    for (int64_t i = 0; i < count && !t; i++)
        to[i] = missing;
}

static int64_t tasks_for(int64_t pieces)
{
    return pieces < cup__threads() ? pieces : cup__threads();
}

static cup_tensor *floats(cup_context *c, int64_t rows, int64_t width)
{
    cup__shape shape = {.dtype = CUP_F32, .ndim = 2, .size = {rows, width}};
    return cup__tensor_make(c, &shape, "rows");
}

const char *cup__layernorm_cpu_refuses(const cup__call *call)
{
    int x = call->op == &cup__op_layernorm_grad ? 1 : 0;
    return call->in[x]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

cup_status cup__layernorm_cpu(cup__call *call)
{
    forward f = {.n = cup__layernorm_of(call)};
    if (f.n.width == 0)
        return cup__layernorm_of_nothing(call, &f.n);
    f.tasks = tasks_for(f.n.rows * f.n.width / CHUNK + 1);
    cup_tensor *memory = floats(call->c, 2 + 4 * f.tasks, f.n.width);
    if (!memory)
        return call->c->error.status;
    float *gamma = memory->data, *beta = gamma + f.n.width;
    load_vector(gamma, f.n.gamma, f.n.width, 1);
    load_vector(beta, f.n.beta, f.n.width, 0);
    f.gamma = gamma;
    f.beta = beta;
    f.buffers = beta + f.n.width;
    f.stream = f.n.rows * f.n.width * cup_dtype_size(f.n.y->dtype) >= CUP__STREAM_LEAST;
    cup__parallel_for(f.tasks, 1, forward_task, &f);
    cup_tensor_free(memory);
    return CUP_OK;
}

/* Sums of g and of g times the normalised x, where g is gamma dy, from dy, x and gamma; both are
 * kept. */
CUP__WIDE static void dots_of_chunk(float *g, float *normal, const float *const from[3],
                                    int64_t count, float mean, float rstd, double sums[2])
{
    const float *dy = from[0], *x = from[1], *gamma = from[2];
    float first[LANES] = {0}, second[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float v = dy[i + k] * gamma[i + k], z = (x[i + k] - mean) * rstd;
            g[i + k] = v;
            normal[i + k] = z;
            first[k] += v;
            second[k] += v * z;
        }
    for (int k = 0; i < count; i++, k++) {
        float v = dy[i] * gamma[i], z = (x[i] - mean) * rstd;
        g[i] = v;
        normal[i] = z;
        first[k] += v;
        second[k] += v * z;
    }
    sums[0] += (double)cup__floats_join(first, LANES);
    sums[1] += (double)cup__floats_join(second, LANES);
}

CUP__WIDE static void dx_row(float *dx, const float *g, const float *normal, int64_t count,
                             float sum, float dot, float rstd)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = rstd * (g[i] - sum - normal[i] * dot);
}

CUP__WIDE static void add_products(float *dgamma, float *dbeta, const float *dy,
                                   const float *normal, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        dgamma[i] += dy[i] * normal[i];
        dbeta[i] += dy[i];
    }
}

typedef struct backward {
    cup__layernorm_back b;
    const float *gamma;
    float *buffers; /* four rows a task */
    float *partial; /* [blocks, 2, width]: dgamma and dbeta of each block of rows */
    int64_t tasks, blocks;
} backward;

static float statistic(const cup_tensor *t, int64_t row)
{
    return t ? ((const float *)t->data)[row] : 0;
}

static void backward_row(const backward *w, int64_t row, float *buffer, float *dgamma)
{
    const cup__layernorm_back *b = &w->b;
    int64_t width = b->width;
    float *normal = buffer + width, *spare = normal + width;
    float rstd = statistic(b->rstd, row), mean = statistic(b->mean, row);
    const float *dy = cup__floats_of(b->dy, row * width, width, spare);
    const float *x = cup__floats_of(b->x, row * width, width, spare + width);
    double sums[2] = {0, 0};
    for (int64_t i = 0; i < width; i += CHUNK)
        dots_of_chunk(buffer + i, normal + i, (const float *[]){dy + i, x + i, w->gamma + i},
                      width - i < CHUNK ? width - i : CHUNK, mean, rstd, sums);
    if (b->dgamma || b->dbeta)
        add_products(dgamma, dgamma + width, dy, normal, width);
    float *dx = place_of(b->dx, row, width, spare);
    dx_row(dx, buffer, normal, width, b->mean ? (float)(sums[0] / (double)width) : 0,
           (float)(sums[1] / (double)width), rstd);
    if (b->dsum)
        add_row(dx, dx, cup__floats_of(b->dsum, row * width, width, spare + width), width);
    put_row(b->dx, row, width, dx);
}

static void backward_task(int64_t begin, int64_t end, void *user)
{
    const backward *w = user;
    for (int64_t task = begin; task < end; task++)
        for (int64_t k = w->blocks * task / w->tasks; k < w->blocks * (task + 1) / w->tasks; k++) {
            float *dgamma = w->partial + k * 2 * w->b.width;
            memset(dgamma, 0, (size_t)(2 * w->b.width) * sizeof *dgamma);
            for (int64_t row = k * ROW_BLOCK; row < (k + 1) * ROW_BLOCK && row < w->b.rows; row++)
                backward_row(w, row, w->buffers + task * 4 * w->b.width, dgamma);
        }
}

/* Adds up the blocks, column by column, in their order. */
static void finish_columns(int64_t begin, int64_t end, void *user)
{
    const backward *w = user;
    for (int64_t i = begin; i < end; i++) {
        double sums[2] = {0};
        for (int64_t k = 0; k < w->blocks; k++)
            for (int which = 0; which < 2; which++)
                sums[which] += (double)w->partial[(2 * k + which) * w->b.width + i];
        if (w->b.dgamma)
            cup__store(w->b.dgamma, i, sums[0]);
        if (w->b.dbeta)
            cup__store(w->b.dbeta, i, sums[1]);
    }
}

cup_status cup__layernorm_back_cpu(cup__call *call)
{
    backward w = {.b = cup__layernorm_back_of(call)};
    int64_t width = w.b.width;
    w.blocks = (w.b.rows + ROW_BLOCK - 1) / ROW_BLOCK;
    w.tasks = tasks_for(w.blocks);
    cup_tensor *memory = floats(call->c, 1 + 4 * w.tasks + 2 * w.blocks, width);
    if (!memory)
        return call->c->error.status;
    float *gamma = memory->data;
    load_vector(gamma, w.b.gamma, width, 1);
    w.gamma = gamma;
    w.buffers = gamma + width;
    w.partial = w.buffers + 4 * w.tasks * width;
    cup__parallel_for(w.tasks, 1, backward_task, &w);
    if (w.b.dgamma || w.b.dbeta)
        cup__parallel_for(width, CHUNK / (w.blocks + 1) + 1, finish_columns, &w);
    cup_tensor_free(memory);
    return CUP_OK;
}

const cup__impl cup__layernorm_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(64, 4096),
     .refuses = cup__layernorm_cpu_refuses,
     .run = cup__layernorm_cpu},
    {.name = "spread", .place = CUP__CUDA, CUP__THRESHOLDS(8192, 16384, 32768),
     .refuses = cup__layernorm_spread_refuses,
     .run = cup__layernorm_spread},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(64, 256, 512, 1024, 4096, 8192),
     .refuses = cup__layernorm_cuda_refuses,
     .run = cup__layernorm_cuda},
    {0},
};
