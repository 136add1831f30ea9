#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_kept_call.cuh"

#define GRAIN 4096

/* An internal op: its shape and dtype come from a recorded call. */
static cup_status infer(cup__call *call)
{
    const cup__attention_kept_attributes *a = call->attributes;
    call->result[0] = (cup__shape){.dtype = a->dtype, .ndim = 4};
    for (int i = 0; i < 4; i++)
        call->result[0].size[i] = a->shape[i];
    return CUP_OK;
}

static void set(const cup__call *call, int64_t i)
{
    const cup__attention_kept_attributes *t = call->attributes;
    cup__attention a = {.random = call->random,
                        .heads = t->shape[1],
                        .queries = t->shape[2],
                        .keys = t->shape[3],
                        .dropout = t->dropout};
    cup__attention_draws(&a, t->sequence);
    int64_t key = i % a.keys, query = i / a.keys % a.queries, head = i / a.keys / a.queries;
    cup__store(call->out[0], i, cup__attention_keep_factor(&a, head, query, key));
}

static cup_status specification(cup__call *call)
{
    for (int64_t i = 0; i < call->out[0]->count; i++)
        set(call, i);
    return CUP_OK;
}

static void run_part(int64_t begin, int64_t end, void *user)
{
    for (int64_t i = begin; i < end; i++)
        set(user, i);
}

static cup_status run(cup__call *call)
{
    cup__parallel_for(call->out[0]->count, GRAIN, run_part, call);
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    const cup__attention_kept_attributes *a = call->attributes;
    cup_tensor *y = call->out[0];
    cup__attention drawn = {.heads = a->shape[1]};
    cup__attention_draws(&drawn, a->sequence);
    kept_call argument = {.y = y->data,
                          .random = call->random,
                          .count = y->count,
                          .heads = drawn.heads,
                          .others = drawn.others,
                          .first = drawn.first,
                          .queries = a->shape[2],
                          .keys = a->shape[3],
                          .factor = cup__attention_factor(a->dropout),
                          .sequence = drawn.sequence,
                          .threshold = cup__attention_threshold(a->dropout)};
    cup__knob knobs[] = {{"CUP_T", y->dtype}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel =
        cup__kernel_get(gpu, "attention_kept.cu", "attention_kept_fwd", knobs, 1);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = (y->count + KEPT_THREADS - 1) / KEPT_THREADS, .threads = KEPT_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static const cup__impl impls[] = {
    {.name = "words", .place = CUP__CUDA, CUP__THRESHOLDS(16), .run = run_cuda},
    {.name = "loop", .place = CUP__CPU, .run = run},
    {0}};
#define KEPT(...) &(const cup__attention_kept_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"", KEPT(CUP_F32, {1, 1, 1, 1}, 4, 0.5, 0)},    {"", KEPT(CUP_F64, {2, 3, 17, 40}, 4, 0.2, 3)},
    {"", KEPT(CUP_BF16, {1, 2, 66, 31}, 4, 0.7, 1)}, {"", KEPT(CUP_F32, {2, 0, 5, 5}, 4, 0.1, 0)},
    {"", KEPT(CUP_F32, {1, 3, 0, 5}, 4, 0.1, 0)},
    {"", KEPT(CUP_F16, {1, 1, 300, 129}, 4, 0.1, 0)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"", KEPT(CUP_F32, {4, 12, 1024, 1024}, 4, 0.1, 0)},
                                    {NULL, NULL}};

const cup__op cup__op_attention_kept = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
};
