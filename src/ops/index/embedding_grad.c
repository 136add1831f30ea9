#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/index/embedding.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

static cup_status infer(cup__call *call)
{
    const cup__embedding_grad_attributes *a = call->attributes;
    const cup_tensor *dy = call->in[0];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_index(call, 1));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    call->result[0] = (cup__shape){dy->dtype, 2, {a->rows, dy->shape[dy->ndim - 1]}};
    return CUP_OK;
}

/* The positions of each id in order: those of id r are order[start[r]] up to, not including,
 * order[start[r + 1]]. */
typedef struct places {
    int64_t *start, *order;
} places;

static cup_status find_places(cup__call *call, places *p)
{
    const cup_tensor *ids = call->in[1];
    int64_t rows = ((const cup__embedding_grad_attributes *)call->attributes)->rows;
    CUP_TRY(cup__ids_check(call, ids, rows));
    p->start = cup__calloc((size_t)rows + ((size_t)ids->count + 2), sizeof *p->start);
    if (!p->start)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    p->order = p->start + rows + 2;
    /* Counted two places on, so that after the sum start[r + 1] is where id r begins, and after
     * the placing where it ends. */
    for (int64_t i = 0; i < ids->count; i++)
        p->start[cup__id_of(ids, i) + 2]++;
    for (int64_t r = 0; r < rows; r++)
        p->start[r + 2] += p->start[r + 1];
    for (int64_t i = 0; i < ids->count; i++)
        p->order[p->start[cup__id_of(ids, i) + 1]++] = i;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0];
    cup_tensor *out = call->out[0];
    places p;
    CUP_TRY(find_places(call, &p));
    for (int64_t at = 0; at < out->count; at++) {
        int64_t row = at / out->shape[1];
        double sum = 0;
        for (int64_t i = p.start[row]; i < p.start[row + 1]; i++)
            sum += cup__load(dy, cup__offset_of(dy, p.order[i] * out->shape[1] +
                                                        at % out->shape[1]));
        cup__store(out, at, sum);
    }
    cup__free(p.start);
    return CUP_OK;
}

typedef struct job {
    cup__call *call;
    places p;
    double *sums;   /* a row a task */
    float *buffers; /* a row a task */
    int64_t tasks;
} job;

CUP__WIDE static void round_row(float *to, const double *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)from[i];
}

static void sum_row(const job *j, int64_t row, double *sum, float *buffer)
{
    const cup_tensor *dy = j->call->in[0];
    cup_tensor *out = j->call->out[0];
    int64_t width = out->shape[1], bytes = width * cup_dtype_size(dy->dtype);
    int64_t first = j->p.start[row], count = j->p.start[row + 1] - first;
    char *to = (char *)out->data + row * bytes;
    if (count < 2) {
        if (count)
            memcpy(to, (const char *)dy->data + j->p.order[first] * bytes, (size_t)bytes);
        else
            memset(to, 0, (size_t)bytes);
        return;
    }
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t i = first; i < first + count; i++) {
        const float *from = cup__floats_of(dy, j->p.order[i] * width, width, buffer);
        cup__floats_add_f64(sum, from, width);
    }
    round_row(buffer, sum, width);
    cup__store_f32(to, buffer, out->dtype, width);
}

/* The rows of a task are those whose positions stand in its share of the order, so that a table
 * with a few frequent rows is shared out too. */
static int64_t first_row(const job *j, int64_t task)
{
    int64_t rows = j->call->out[0]->shape[0], low = 0, high = rows;
    int64_t work = rows + j->call->in[1]->count, share = work * task / j->tasks;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (middle + j->p.start[middle] < share)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void run_task(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    int64_t width = j->call->out[0]->shape[1];
    for (int64_t task = begin; task < end; task++)
        for (int64_t row = first_row(j, task); row < first_row(j, task + 1); row++)
            sum_row(j, row, j->sums + task * width, j->buffers + task * width);
}

static cup_status run(cup__call *call)
{
    job j = {.call = call, .tasks = cup__threads()};
    int64_t width = call->out[0]->shape[1];
    CUP_TRY(find_places(call, &j.p));
    j.sums = cup__calloc((size_t)width, (size_t)j.tasks * (sizeof(double) + sizeof(float)));
    if (j.sums) {
        j.buffers = (float *)(j.sums + width * j.tasks);
        cup__parallel_for(j.tasks, 1, run_task, &j);
    }
    cup__free(j.p.start);
    if (!j.sums)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    cup__free(j.sums);
    return CUP_OK;
}

static const char *refuses(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F64 ? "it rounds to single precision" : NULL;
}

static const cup__impl impls[] = {
    {.name = "sorted", .place = CUP__CPU, CUP__THRESHOLDS(64, 128, 256, 1024),
     .refuses = refuses, .run = run},
    {.name = "sorted",
     .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256, 1024),
     .refuses = cup__embedding_grad_cuda_refuses,
     .run = cup__embedding_grad_cuda},
    {0},
};
static int64_t indices(cup_tensor *const *in, int i, const void *attributes)
{
    (void)in;
    return i == 1 ? ((const cup__embedding_grad_attributes *)attributes)->rows : 0;
}

static const cup__embedding_grad_attributes sixty = {60}, many = {1000}, words = {50257};
static const cup__sample samples[] = {
    {"7x5 7", &sixty},        {"3x4x8 3x4", &many}, {"1 ()", &sixty},    {"33x768 33", &many},
    {"2x5x1025 2x5", &sixty}, {"0x5 0", &sixty},    {"5000x3 5000", &sixty},
    {"300x200 300", &many},   {"3000x16 3000", &words}, {NULL, NULL}};
static const cup__embedding_grad_attributes gpt2 = {50304};
static const cup__sample bench[] = {{"32x1024x768 32x1024", &gpt2}, {NULL, NULL}};

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_embedding(g->c, g->d_out[0], g->in[1]);
    return CUP_OK;
}

const cup__op cup__op_embedding_grad = {
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-0.5, 1}, {0, 60}},
    .indices = indices,
    .bench_indices = 50257,
    .in_dtypes = {0, CUP__DTYPES_INDEX},
    .tolerance = 8, /* sums of many rows */
};
