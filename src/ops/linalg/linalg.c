#include "ops/linalg/linalg.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cupola/ops.h"

#define MOST 4096             /* rows */
#define SHARED_MOST (48 << 10) /* bytes that any card has for a block */

cup_status cup__need_matrices(cup__call *call, int64_t most)
{
    const cup_tensor *a = call->in[0];
    CUP_TRY(cup__need_ndim(call, 0, 2, CUP_MAX_DIMS));
    if (a->dtype != CUP_F32 && a->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE,
                              "matrices must be f32 or f64; convert them with cup_cast");
    int64_t rows = a->shape[a->ndim - 2], columns = a->shape[a->ndim - 1];
    if ((rows > most && columns > most) || (columns && rows > INT32_MAX / 2 / columns))
        return cup__call_fail(call, CUP_SHAPE,
                              "matrices must have up to %lld rows or columns, and be below 2^30 "
                              "elements each",
                              (long long)most);
    return CUP_OK;
}

cup_status cup__need_square(cup__call *call)
{
    const cup_tensor *a = call->in[0];
    CUP_TRY(cup__need_matrices(call, INT32_MAX));
    if (a->shape[a->ndim - 1] != a->shape[a->ndim - 2] || a->shape[a->ndim - 1] > MOST)
        return cup__call_fail(call, CUP_SHAPE, "matrices must be square, with up to %d rows", MOST);
    return CUP_OK;
}

static int64_t size_of(const cup_tensor *t)
{
    return t->shape[t->ndim - 1] * t->shape[t->ndim - 2];
}

static void matrix_load(const cup_tensor *t, int64_t i, double *to)
{
    int64_t size = size_of(t);
    for (int64_t k = 0; k < size; k++)
        to[k] = cup__load(t, cup__offset_of(t, i * size + k));
}

/* Returns the place behind what it stored. */
static const double *matrix_store(cup_tensor *t, int64_t size, int64_t i, const double *from)
{
    for (int64_t k = 0; k < size; k++)
        cup__store(t, i * size + k, from[k]);
    return from + size;
}

typedef struct job {
    cup__call *call;
    const cup__linalg *how;
    int64_t count;
    bool failed;
} job;

static void run_part(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    cup__call *call = j->call;
    int64_t size = j->how->room;
    for (int k = 0; k < call->in_count; k++)
        size += size_of(call->in[k]);
    double *work = cup__malloc(((size_t)size + 1) * sizeof *work);
    if (!work) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        double *to = work;
        const double *from = work + j->how->results;
        for (int k = 0; k < call->in_count; to += size_of(call->in[k++]))
            matrix_load(call->in[k], i, to);
        j->how->body(call, work);
        for (int k = 0; k < call->out_count; k++)
            from = matrix_store(call->out[k], call->out[k]->count / j->count, i, from);
    }
    cup__free(work);
}

cup_status cup__linalg_each(cup__call *call, const cup__linalg *how, double work, bool parallel)
{
    int64_t size = size_of(call->in[0]), count = size ? call->in[0]->count / size : 0;
    job j = {call, how, count, false};
    if (parallel)
        cup__parallel_for(count, (int64_t)(16384 / (work + 1)) + 1, run_part, &j);
    else
        run_part(0, count, &j);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}

int cup__linalg_shared(const cup__call *call)
{
    int64_t bytes = size_of(call->in[0]) * cup_dtype_size(call->in[0]->dtype);
    return bytes <= SHARED_MOST ? (int)bytes : 0;
}

/* Few lanes for short columns, so that a warp works on several; columns begin in banks of shared
 * memory that do not collide then. */
static int distance_of(int64_t column, int lanes)
{
    int64_t parts = (column + lanes - 1) / lanes;
    return (int)(lanes == 32 ? column : lanes * (parts | 1));
}

cup__linalg_columns cup__linalg_columns_of(int64_t column, int64_t shorter, int64_t at_a_time)
{
    int lanes = column <= 16 ? 4 : column <= 64 ? 8 : 32;
    int64_t threads = (at_a_time * lanes + 31) / 32 * 32;
    return (cup__linalg_columns){.lanes = lanes,
                                 .threads = (int)(threads > 256 ? 256 : threads),
                                 .distance = distance_of(column, lanes),
                                 .across = distance_of(shorter, lanes)};
}

cup_status cup__linalg_launch(cup__call *call, const char *file, const char *kernel,
                              const cup__linalg_columns *by, int64_t room)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup_tensor *a = call->in[0];
    int64_t size = size_of(a), count = size ? a->count / size : 0;
    int64_t bytes = room * cup_dtype_size(a->dtype);
    bool shared = bytes <= SHARED_MOST;
    cup__shape shape = {.dtype = a->dtype, .ndim = 2, .size = {count, room}};
    cup_tensor *work = shared || !count ? NULL : cup__tensor_make(call->c, &shape, file);
    if (count && !shared && !work)
        return call->c->error.status;
    void *memory[4] = {work ? work->data : NULL};
    for (int i = 0; i < call->out_count && i < 3; i++)
        memory[i + 1] = call->out[i]->data;
    int rows = (int)a->shape[a->ndim - 2], columns = (int)a->shape[a->ndim - 1];
    cup__knob knobs[] = {{"CUP_T", a->dtype},
                         {"SHARED", shared},
                         {"LANES", by->lanes},
                         {"THREADS", by->threads}};
    cup__grid grid = {.x = count, .threads = by->threads, .shared = shared ? (int)bytes : 0};
    cup_status status = cup__launch(
        gpu, cup__kernel_get(gpu, file, kernel, knobs, 4), grid, CUP__ARG(a->data),
        CUP__ARG(memory[1]), CUP__ARG(memory[2]), CUP__ARG(memory[3]), CUP__ARG(memory[0]),
        CUP__ARG(rows), CUP__ARG(columns), CUP__ARG(by->distance), CUP__ARG(by->across));
    cup_tensor_free(work);
    return status;
}

cup_tensor *cup__linalg_turned(cup_context *c, cup_tensor *t)
{
    int64_t axes[CUP_MAX_DIMS];
    if (!t)
        return NULL;
    for (int d = 0; d < t->ndim; d++)
        axes[d] = d < t->ndim - 2 ? d : 2 * t->ndim - 3 - d;
    return cup_permute(c, t, axes, t->ndim);
}
