#include "ops/linalg/linalg.h"

#include "base/memory.h"
#include "base/parallel.h"

#define MOST 4096             /* rows */
#define SHARED_MOST (48 << 10) /* bytes that any card has for a block */

cup_status cup__need_square(cup__call *call)
{
    const cup_tensor *a = call->in[0];
    CUP_TRY(cup__need_ndim(call, 0, 2, CUP_MAX_DIMS));
    if (a->dtype != CUP_F32 && a->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE,
                              "matrices must be f32 or f64; convert them with cup_cast");
    if (a->shape[a->ndim - 1] != a->shape[a->ndim - 2] || a->shape[a->ndim - 1] > MOST)
        return cup__call_fail(call, CUP_SHAPE, "matrices must be square, with up to %d rows", MOST);
    return CUP_OK;
}

static int64_t size_of(const cup_tensor *t)
{
    return t->shape[t->ndim - 1] * t->shape[t->ndim - 2];
}

void cup__matrix_load(const cup_tensor *t, int64_t i, double *to)
{
    int64_t size = size_of(t);
    for (int64_t k = 0; k < size; k++)
        to[k] = cup__load(t, cup__offset_of(t, i * size + k));
}

void cup__matrix_store(cup_tensor *t, int64_t i, const double *from)
{
    int64_t size = size_of(t);
    for (int64_t k = 0; k < size; k++)
        cup__store(t, i * size + k, from[k]);
}

typedef struct job {
    cup__call *call;
    cup__linalg_body body;
    bool failed;
} job;

static void run_part(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    cup__call *call = j->call;
    int64_t size = 0, last = 0;
    for (int k = 0; k < call->in_count; k++) {
        last = size;
        size += size_of(call->in[k]);
    }
    double *work = cup__malloc(((size_t)size + 1) * sizeof *work);
    if (!work) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        double *to = work;
        for (int k = 0; k < call->in_count; to += size_of(call->in[k++]))
            cup__matrix_load(call->in[k], i, to);
        j->body(call, work);
        cup__matrix_store(call->out[0], i, work + last);
    }
    cup__free(work);
}

cup_status cup__linalg_each(cup__call *call, cup__linalg_body body, bool parallel)
{
    job j = {call, body, false};
    int64_t size = size_of(call->out[0]), count = size ? call->out[0]->count / size : 0;
    int64_t rows = call->in[0]->shape[call->in[0]->ndim - 1];
    if (parallel)
        cup__parallel_for(count, 16384 / (rows * rows * rows + 1) + 1, run_part, &j);
    else
        run_part(0, count, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

int cup__linalg_shared(const cup__call *call)
{
    int64_t bytes = size_of(call->in[0]) * cup_dtype_size(call->in[0]->dtype);
    return bytes <= SHARED_MOST ? (int)bytes : 0;
}
