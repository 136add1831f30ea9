#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "ops/reduce/cumsum_call.cuh"
#include "dispatch/attributes.h"
#include "dispatch/op.h"

#define LEAST_CHUNK 4096 /* elements that are worth a block */
#define MOST_CHUNKS 1024
#define MANY_LINES 2048   /* that keep the card busy with a warp each */
#define GRAIN 65536

static cup_status infer(cup__call *call)
{
    const cup__cumsum_attributes *a = call->attributes;
    int axis;
    if (call->in[0]->dtype != CUP_I32 && call->in[0]->dtype != CUP_I64)
        CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

/* The tensor as [outer, length, inner], and which way the sums run. */
typedef struct lines {
    const cup_tensor *x;
    cup_tensor *y;
    int64_t outer, length, inner;
    bool reverse;
} lines;

static lines lines_of(const cup__call *call)
{
    const cup__cumsum_attributes *a = call->attributes;
    lines l = {call->in[0], call->out[0], 1, 1, 1, a->reverse};
    int axis = a->axis < 0 ? a->axis + l.y->ndim : a->axis;
    for (int i = 0; i < l.y->ndim; i++)
        *(i < axis ? &l.outer : i == axis ? &l.length : &l.inner) *= l.y->shape[i];
    return l;
}

static cup_status specification(cup__call *call)
{
    lines l = lines_of(call);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        long double sum = 0;
        uint64_t whole = 0;
        for (int64_t i = 0; i < l.length; i++) {
            int64_t at = l.reverse ? l.length - 1 - i : i;
            int64_t index = (line / l.inner * l.length + at) * l.inner + line % l.inner;
            int64_t from = cup__offset_of(l.x, index);
            if (l.x->dtype == CUP_I64) {
                whole += (uint64_t)((const int64_t *)l.x->data)[from];
                ((int64_t *)l.y->data)[index] = (int64_t)whole;
            } else {
                sum += cup__load(l.x, from);
                cup__store(l.y, index, (double)sum);
            }
        }
    }
    return CUP_OK;
}

typedef struct job {
    lines l;
    bool failed;
} job;

/* A slab of one outer index at a time: sums of `inner` columns, in double. */
static void run_outer(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const lines *l = &j->l;
    int64_t size = cup_dtype_size(l->x->dtype);
    double *sum = cup__malloc((size_t)l->inner * (sizeof(double) + sizeof(float)));
    float *buffer = sum ? (float *)(void *)(sum + l->inner) : NULL;
    if (!sum) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t o = begin; o < end; o++) {
        for (int64_t k = 0; k < l->inner; k++)
            sum[k] = 0;
        for (int64_t i = 0; i < l->length; i++) {
            int64_t at = l->reverse ? l->length - 1 - i : i;
            int64_t offset = (o * l->length + at) * l->inner * size;
            cup__load_f32(buffer, (const char *)l->x->data + offset, l->x->dtype, l->inner);
            for (int64_t k = 0; k < l->inner; k++) {
                sum[k] += (double)buffer[k];
                buffer[k] = (float)sum[k];
            }
            cup__store_f32((char *)l->y->data + offset, buffer, l->y->dtype, l->inner);
        }
    }
    cup__free(sum);
}

static cup_status run(cup__call *call)
{
    job j = {.l = lines_of(call)};
    cup__parallel_for(j.l.outer, GRAIN / (j.l.length * j.l.inner + 1) + 1, run_outer, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

static const char *refuses(const cup__call *call)
{
    cup_dtype dtype = call->in[0]->dtype;
    return !cup__dtype_is_float(dtype) || dtype == CUP_F64 ? "it reads single precision" : NULL;
}

static int vector_of(const lines *l, int64_t width)
{
    int size = (int)cup_dtype_size(l->x->dtype), vector = 16 / size;
    uintptr_t address = (uintptr_t)l->x->data | (uintptr_t)l->y->data;
    while (vector > 1 && (width % vector || address % (uintptr_t)(vector * size)))
        vector /= 2;
    return vector;
}

typedef struct plan {
    cup__cuda *gpu;
    lines l;
    cup_dtype dtype;
    bool columns;
    int vec, group;
    cumsum_call argument;
} plan;

/* Cuts lines that are too few to keep the card busy. */
static void plan_chunks(plan *p)
{
    const lines *l = &p->l;
    cumsum_call *c = &p->argument;
    int64_t busy = 8 * (int64_t)cup__cuda_facts(p->gpu)->multiprocessors;
    int64_t blocks = p->columns ? l->outer * (l->inner / p->vec) / CUMSUM_THREADS + 1 : l->outer;
    int64_t least = p->columns ? 64 : LEAST_CHUNK;
    int64_t chunks = busy / blocks, most = l->length / least;
    chunks = chunks < most ? chunks : most;
    chunks = chunks < MOST_CHUNKS ? chunks : MOST_CHUNKS;
    if (chunks < 3 || (!p->columns && p->group < CUMSUM_THREADS))
        chunks = 1;
    int64_t step = p->columns ? 1 : CUMSUM_THREADS * p->vec;
    c->chunk = (l->length + chunks * step - 1) / (chunks * step) * step;
    c->chunks = (l->length + c->chunk - 1) / c->chunk;
}

static cup_status launch(const plan *p, bool sums)
{
    const lines *l = &p->l;
    cup__knob knobs[] = {{"CUP_T", p->dtype},     {"VEC", p->vec}, {"REVERSE", l->reverse},
                         {"COLUMNS", p->columns}, {"SUMS", sums},  {"GROUP", p->group}};
    cup__kernel *kernel = cup__kernel_get(p->gpu, "cumsum.cu",
                                          p->columns ? "cumsum_columns" : "cumsum_rows", knobs, 6);
    int64_t threads = l->outer * p->argument.chunks * (p->columns ? l->inner / p->vec : p->group);
    cup__grid grid = {.x = (threads + CUMSUM_THREADS - 1) / CUMSUM_THREADS,
                      .threads = CUMSUM_THREADS};
    return cup__launch(p->gpu, kernel, grid, CUP__ARG(p->argument));
}

/* Lanes for a line that is contiguous: a few of a warp, or a block where it is long. */
static int group_of(int64_t length, int vec, int64_t count)
{
    int group = 1;
    while (group < 32 && group * vec < length)
        group *= 2;
    return length > 32 * vec * (count < MANY_LINES ? 2 : 16) ? CUMSUM_THREADS : group;
}

/* The sums of chunks become the sums of all chunks up to each. */
static cup_status sum_up(const plan *p, cup_tensor *sums)
{
    plan whole = {.gpu = p->gpu, .l = {sums, sums, sums->count / p->argument.chunks,
                                       p->argument.chunks, 1, false}};
    whole.dtype = sums->dtype;
    whole.vec = 1;
    whole.group = group_of(whole.l.length, 1, whole.l.outer);
    whole.argument = (cumsum_call){.x = sums->data,
                                   .y = sums->data,
                                   .outer = whole.l.outer,
                                   .length = whole.l.length,
                                   .inner = 1,
                                   .chunk = whole.l.length,
                                   .chunks = 1};
    return launch(&whole, false);
}

static cup_status run_cuda(cup__call *call)
{
    plan p = {.gpu = cup__cuda_of(call->c->device), .l = lines_of(call)};
    const lines *l = &p.l;
    p.dtype = l->x->dtype;
    p.columns = l->inner > 1;
    p.vec = vector_of(l, p.columns ? l->inner : l->length);
    p.group = p.columns ? CUMSUM_THREADS : group_of(l->length, p.vec, l->outer);
    p.argument = (cumsum_call){.x = l->x->data, .y = l->y->data, .outer = l->outer,
                               .length = l->length, .inner = l->inner};
    plan_chunks(&p);
    if (p.argument.chunks < 2)
        return launch(&p, false);
    cup_dtype dtype = p.dtype == CUP_F64 ? CUP_F64
                      : cup__dtype_is_float(p.dtype) ? CUP_F32
                                                     : CUP_I64;
    cup__shape shape = {dtype, 1, {l->outer * p.argument.chunks * l->inner}};
    cup_tensor *sums = cup__tensor_make(call->c, &shape, "cumsum");
    if (!sums)
        return call->c->error.status;
    p.argument.sums = sums->data;
    cup_status status = launch(&p, true);
    if (status == CUP_OK)
        status = sum_up(&p, sums);
    if (status == CUP_OK)
        status = launch(&p, false);
    cup_tensor_free(sums);
    return status;
}

static cup_status gradient(cup__grad *g)
{
    const cup__cumsum_attributes *a = g->attributes;
    g->d_in[0] = cup_cumsum(g->c, g->d_out[0], a->axis, !a->reverse);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "lines", .place = CUP__CPU, CUP__THRESHOLDS(16, 1024), .refuses = refuses, .run = run},
    {.name = "chunks", .place = CUP__CUDA, CUP__THRESHOLDS(32, 256, 1024, 4096, 8192),
     .run = run_cuda},
    {0},
};
#define ALONG(axis, reverse) &(const cup__cumsum_attributes){axis, reverse}
static const cup__sample samples[] = {
    {"7", ALONG(0, false)},         {"3x5", ALONG(1, true)},     {"4x3x5", ALONG(1, false)},
    {"0x5", ALONG(0, true)},        {"1x1", ALONG(-1, false)},   {"33x40", ALONG(0, true)},
    {"9x1025", ALONG(-1, false)},   {"5x512", ALONG(-1, true)},  {"16411", ALONG(0, false)},
    {"2x12800", ALONG(1, true)},    {"5000x16", ALONG(0, false)}, {"300x2", ALONG(-1, true)},
    {"2x1000x3", ALONG(1, true)},   {NULL, NULL}};
static const cup__sample bench[] = {{"67108864", ALONG(0, false)},
                                    {"32768x768", ALONG(1, false)},
                                    {"32768x768", ALONG(0, false)},
                                    {"1048576x32", ALONG(1, false)},
                                    {"8192x8192", ALONG(0, true)},
                                    {NULL, NULL}};

const cup__op cup__op_cumsum = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-0.5, 1}},
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX},
    .tolerance = 16, /* sums of many elements */
};
