#include <math.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "ops/attributes.h"
#include "ops/pointwise.h"

#define BLOCK 16384 /* elements of one partial sum, whatever the number of cores */
#define PIECE 1024

static cup_status infer(cup__call *call)
{
    bool any_f64 = false;
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i])
            return cup__call_fail(call, CUP_ARGUMENT, "tensor %d is NULL", i);
        CUP_TRY(cup__need_float(call, i));
        any_f64 |= call->in[i]->dtype == CUP_F64;
    }
    call->result[0] = (cup__shape){.dtype = any_f64 ? CUP_F64 : CUP_F32, .ndim = 0};
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

static const char *refuses(const cup__call *call)
{
    for (int i = 0; i < call->in_count; i++) {
        if (call->in[i]->dtype == CUP_F64)
            return "it reads in single precision and a tensor is f64";
        if (!call->in[i]->contiguous)
            return "a tensor is not in row-major order";
    }
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

static const cup__impl impls[] = {
    {.name = "blocks", .place = CUP__CPU, .strided = true, .refuses = refuses, .run = run_cpu},
    {0},
};
static const cup__sample samples[] = {{"7", NULL},
                                      {"3x5 () 0x4 1025", NULL},
                                      {"40001 1 65x33", NULL},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"124354560", NULL}, {NULL, NULL}};

const cup__op cup__op_global_norm = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .list_from = 0,
    .list_step = 1,
};
