#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#define CHUNK 4096

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_float(call, 1));
    if (call->in[1]->count != 1)
        return cup__call_fail(call, CUP_SHAPE, "the factor must have one element");
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    cup_tensor *x = call->in[0];
    double factor = cup__load(call->in[1], 0);
    for (int64_t i = 0; i < x->count && factor != 1; i++) {
        int64_t at = cup__offset_of(x, i);
        cup__store(x, at, cup__load(x, at) * factor);
    }
    return CUP_OK;
}

typedef struct job {
    cup_tensor *x;
    float factor;
} job;

static void run_chunks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    float buffer[CHUNK];
    for (int64_t i = begin * CHUNK; i < end * CHUNK && i < j->x->count; i += CHUNK) {
        int64_t count = j->x->count - i < CHUNK ? j->x->count - i : CHUNK;
        char *at = (char *)j->x->data + i * cup_dtype_size(j->x->dtype);
        cup__load_f32(buffer, at, j->x->dtype, count);
        cup__floats_scale(buffer, j->factor, count);
        cup__store_f32(at, buffer, j->x->dtype, count);
    }
}

static cup_status run(cup__call *call)
{
    job j = {call->in[0], (float)cup__load(call->in[1], 0)};
    if (j.factor != 1)
        cup__parallel_for((j.x->count + CHUNK - 1) / CHUNK, 8, run_chunks, &j);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "vector", .place = CUP__CPU, CUP__THRESHOLDS(4096),
     .refuses = cup__refuses_f64, .run = run},
    {.name = "vector", .place = CUP__CUDA, CUP__THRESHOLDS(4096), .run = cup__scale_by_cuda},
    {0},
};
static const cup__sample samples[] = {
    {"7 ()", NULL}, {"3x5 1", NULL}, {"0x5 ()", NULL}, {"33x1025 ()", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x50304 ()", NULL}, {NULL, NULL}};

const cup__op cup__op_scale_by = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {0, CUP__DTYPE(F32) | CUP__DTYPE(F64)},
};
