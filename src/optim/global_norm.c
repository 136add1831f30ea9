#include <math.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

#define BLOCK 16384 /* elements of one partial sum, on any device */
#define PIECE 1024
#define MOST_AT_ONCE 1024 /* tensors that fit a kernel's arguments, which are 32764 bytes */

static cup_status infer(cup__call *call)
{
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i])
            return cup__call_fail(call, CUP_ARGUMENT, "tensor %d is NULL", i);
        CUP_TRY(cup__need_float(call, i));
    }
    call->result[0] = (cup__shape){.dtype = CUP_F32, .ndim = 0};
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    double sum = 0;
    for (int i = 0; i < call->in_count; i++)
        for (int64_t k = 0; k < call->in[i]->count; k++) {
            double x = cup__load(call->in[i], cup__offset_of(call->in[i], k));
            sum += x * x;
        }
    cup__store(call->out[0], 0, sqrt(sum));
    return CUP_OK;
}

static const char *refuses_cpu(const cup__call *call)
{
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i]->dtype == CUP_F64)
            return "it reads in single precision and a tensor is f64";
    return NULL;
}

/* Sixteen sums side by side, in double so that no square overflows. */
CUP__WIDE static double squares(const float *x, int64_t count)
{
    double lane[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    return sum;
}

typedef struct job {
    cup__call *call;
    int64_t *first; /* block of each tensor, and behind the last their number */
    double *sums;   /* of the blocks */
} job;

static double sum_block(const cup_tensor *t, int64_t from)
{
    int64_t count = t->count - from < BLOCK ? t->count - from : BLOCK;
    const char *at = (const char *)t->data + from * cup_dtype_size(t->dtype);
    if (t->dtype == CUP_F32)
        return squares((const float *)(const void *)at, count);
    float buffer[PIECE];
    double sum = 0;
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t piece = count - i < PIECE ? count - i : PIECE;
        cup__load_f32(buffer, at + i * cup_dtype_size(t->dtype), t->dtype, piece);
        sum += squares(buffer, piece);
    }
    return sum;
}

static void sum_blocks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    int i = 0;
    for (int64_t block = begin; block < end; block++) {
        while (j->first[i + 1] <= block)
            i++;
        j->sums[block] = sum_block(j->call->in[i], (block - j->first[i]) * BLOCK);
    }
}

static cup_status run_cpu(cup__call *call)
{
    job j = {.call = call, .first = cup__malloc((size_t)(call->in_count + 1) * sizeof *j.first)};
    int64_t blocks = 0;
    for (int i = 0; j.first && i <= call->in_count; i++) {
        j.first[i] = blocks;
        if (i < call->in_count)
            blocks += (call->in[i]->count + BLOCK - 1) / BLOCK;
    }
    j.sums = cup__malloc((size_t)blocks * sizeof *j.sums);
    cup_status status = CUP_OK;
    double sum = 0;
    if (j.first && j.sums)
        cup__parallel_for(blocks, 4, sum_blocks, &j);
    else
        status = cup__call_fail(call, CUP_MEMORY, "out of host memory");
    for (int64_t i = 0; i < blocks && status == CUP_OK; i++)
        sum += j.sums[i];
    cup__store(call->out[0], 0, sqrt(sum));
    cup__free(j.first);
    cup__free(j.sums);
    return status;
}

/* norm_entry of global_norm.cu. */
typedef struct entry {
    const void *data;
    int64_t count, chunk;
} entry;

typedef struct launch {
    cup__call *call;
    cup_tensor *partial;
    cup_dtype dtype;
    bool aligned;
    int count;
    int64_t sent, chunks; /* of earlier launches, and of this one */
    entry entries[MOST_AT_ONCE];
} launch;

static const char *refuses_cuda(const cup__call *call)
{
    for (int i = 1; i < call->in_count; i++)
        if ((call->in[i]->dtype == CUP_F64) != (call->in[0]->dtype == CUP_F64))
            return "some tensors are f64 and others not";
    return NULL;
}

static cup_status send(launch *l)
{
    if (l->count == 0)
        return CUP_OK;
    cup__cuda *gpu = cup__cuda_of(l->call->c->device);
    int64_t most = l->count <= 64 ? 64 : l->count <= 256 ? 256 : MOST_AT_ONCE;
    const cup__knob knobs[] = {{"CUP_T", l->dtype},
                               {"MOST", most},
                               {"VEC", l->aligned ? 16 / cup_dtype_size(l->dtype) : 1}};
    cup__kernel *kernel = cup__kernel_get(gpu, "global_norm.cu", "global_norm_squares", knobs, 3);
    if (!kernel)
        return l->call->c->error.status;
    char *partial = (char *)l->partial->data + l->sent * cup_dtype_size(l->partial->dtype);
    cup__argument table = {l->entries, (size_t)most * sizeof *l->entries};
    cup_status status = cup__launch(gpu, kernel, ((cup__grid){.x = l->chunks, .threads = 256}),
                                    table, CUP__ARG(l->count), CUP__ARG(partial));
    l->sent += l->chunks;
    l->chunks = l->count = 0;
    l->aligned = true;
    return status;
}

/* All tensors of one dtype. */
static cup_status send_dtype(launch *l, cup_dtype dtype)
{
    l->dtype = dtype;
    for (int i = 0; i < l->call->in_count; i++) {
        const cup_tensor *t = l->call->in[i];
        if (t->dtype != dtype || t->count == 0)
            continue;
        l->entries[l->count++] = (entry){t->data, t->count, l->chunks};
        l->chunks += (t->count + BLOCK - 1) / BLOCK;
        l->aligned &= (uintptr_t)t->data % 16 == 0;
        if (l->count == MOST_AT_ONCE)
            CUP_TRY(send(l));
    }
    return send(l);
}

static cup_status finish(launch *l)
{
    cup__cuda *gpu = cup__cuda_of(l->call->c->device);
    const cup__knob knobs[] = {{"CUP_T", l->partial->dtype}, {"MOST", 1}, {"VEC", 1}};
    cup__kernel *kernel = cup__kernel_get(gpu, "global_norm.cu", "global_norm_finish", knobs, 3);
    if (!kernel)
        return l->call->c->error.status;
    const void *partial = l->partial->data;
    void *norm = l->call->out[0]->data;
    return cup__launch(gpu, kernel, ((cup__grid){.x = 1, .threads = 1024}), CUP__ARG(partial),
                       CUP__ARG(l->sent), CUP__ARG(norm));
}

static cup_status run_cuda(cup__call *call)
{
    cup__shape sums = {.dtype = CUP_F64, .ndim = 1};
    for (int i = 0; i < call->in_count; i++)
        sums.size[0] += (call->in[i]->count + BLOCK - 1) / BLOCK;
    launch l = {
        .call = call, .partial = cup__tensor_make(call->c, &sums, "global_norm"), .aligned = true};
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16, CUP_F64};
    cup_status status = l.partial ? CUP_OK : call->c->error.status;
    for (int i = 0; i < 4 && status == CUP_OK; i++)
        status = send_dtype(&l, dtypes[i]);
    if (status == CUP_OK)
        status = finish(&l);
    cup_tensor_free(l.partial);
    return status;
}

static const cup__impl impls[] = {
    {.name = "blocks", .place = CUP__CPU, CUP__THRESHOLDS(1024, 16384),
     .refuses = refuses_cpu, .run = run_cpu},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(1024, 16384),
     .refuses = refuses_cuda, .run = run_cuda},
    {0},
};
static const cup__sample samples[] = {
    {"7", NULL}, {"3x5 () 0x4 1025", NULL}, {"40001 1 65x33", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"124354560", NULL},
    {"50257x768 1024x768 12*(6*768 2304 3072 2304x768 768x768 3072x768 768x3072) 2*768", NULL},
    {NULL, NULL}};

const cup__op cup__op_global_norm = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .list_from = 0,
    .list_step = 1,
};
