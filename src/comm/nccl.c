/* Operations between GPUs: NCCL, on a stream of its own that waits for the context's and is waited
 * for by it, with events, so that a graph takes both. All communicators of a context have that one
 * stream, so that its card does what it has with others one after the other, in the order in which
 * it was asked for: of two that ran at once one card could begin the first and another card the
 * second, and each wait for what the other has no room for. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "comm/direct.h"
#include "cuda/cuda.h"
#include "cuda/loader.h"

/* The stream that all communicators of a context share. */
typedef struct line {
    const cup__cuda *gpu;
    CUstream stream;
    int refs;
    struct line *next;
    uint64_t queued; /* operations */
    bool open;   /* something was queued that the context does not wait for yet */
    bool beside; /* that may still run while the context goes on */
} line;

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list alone */
static line *lines;

/* A sum that the context waits for where it is read, and no sooner. */
struct cup__flying {
    struct cup__gpus *n;
    CUevent done;
    uint64_t number; /* of those queued */
    struct cup__flying *spare;
};

struct cup__gpus {
    cup_comm *m;
    cup__cuda *gpu;
    ncclComm_t handle;
    line *line;
    CUstream stream; /* the line's */
    CUevent begun, done;
    cup__flying *spare; /* to use again */
    struct cup__direct *direct; /* how two GPUs add up without NCCL, or NULL */
    cup__rope rope;
};

static cup_status check(cup_comm *m, ncclResult_t result, const char *doing)
{
    if (result == ncclSuccess)
        return CUP_OK;
    if (m->mesh->failed)
        return cup__mesh_error(m->mesh, &m->c->error);
    const char *more =
        cup__nccl.ncclGetLastError ? cup__nccl.ncclGetLastError(NULL) : NULL;
    return cup__fail(&m->c->error, CUP_DRIVER, "NCCL: %s failed: %s%s%.300s; NCCL_DEBUG=INFO says "
                                               "more",
                     doing, cup__nccl.ncclGetErrorString(result), more && *more ? ": " : "",
                     more ? more : "");
}

static cup_status check_driver(cup_comm *m, CUresult result, const char *doing)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    cup__driver.cuGetErrorString(result, &text);
    return cup__fail(&m->c->error, CUP_DRIVER, "communicator: %s failed: %s", doing,
                     text ? text : "unknown");
}

/* From the watching thread: ends what waits on the GPU for a process that will not come. */
static void pull(void *user)
{
    cup__gpus *n = user;
    cup__nccl.ncclCommAbort(n->handle);
    n->handle = NULL;
}

static bool broken(void *user, char *why, size_t size)
{
    cup__gpus *n = user;
    ncclResult_t result = ncclSuccess;
    if (cup__nccl.ncclCommGetAsyncError(n->handle, &result) == ncclSuccess &&
        (result == ncclSuccess || result == ncclInProgress))
        return false;
    snprintf(why, size, "NCCL has failed: %s", cup__nccl.ncclGetErrorString(result));
    return true;
}

/* Memory that is mapped in pieces cannot be registered for other processes when a graph is
 * captured, which NCCL would try. What the user has set stays. */
static cup_status make_handle(cup_comm *m, cup__gpus *n)
{
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    if (m->rank == 0)
        CUP_TRY(check(m, cup__nccl.ncclGetUniqueId(&id), "beginning"));
    CUP_TRY(cup__operation_begin(m, CUP__BROADCAST));
    cup_status status = cup__host_broadcast(m, &id, sizeof id, 0);
    cup__operation_end(m);
    CUP_TRY(status);
    CUP_TRY(cup__launch_foreign(n->gpu, "NCCL"));
    return check(m, cup__nccl.ncclCommInitRank(&n->handle, m->count, id, m->rank),
                 "joining the GPUs");
}

static line *line_of(const cup__cuda *gpu)
{
    pthread_mutex_lock(&lines_lock);
    line *found = lines;
    while (found && found->gpu != gpu)
        found = found->next;
    if (!found && (found = cup__calloc(1, sizeof *found)) != NULL) {
        *found = (line){.gpu = gpu, .next = lines};
        lines = found;
    }
    if (found)
        found->refs++;
    pthread_mutex_unlock(&lines_lock);
    return found;
}

static cup_status take_line(cup_comm *m, cup__gpus *n)
{
    n->line = line_of(n->gpu);
    if (!n->line)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for a communicator");
    if (!n->line->stream)
        CUP_TRY(check_driver(m,
                             cup__driver.cuStreamCreate(&n->line->stream, CU_STREAM_NON_BLOCKING),
                             "making a stream"));
    n->stream = n->line->stream;
    return CUP_OK;
}

cup_status cup__nccl_open(cup_comm *m)
{
    CUP_TRY(cup__library_need(&m->c->error, CUP__LIBNCCL));
    cup__gpus *n = cup__calloc(1, sizeof *n);
    if (!n)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for a communicator");
    *n = (cup__gpus){.m = m, .gpu = cup__cuda_of(m->c->device)};
    n->rope = (cup__rope){.pull = pull, .broken = broken, .user = n};
    m->nccl = n;
    CUP_TRY(make_handle(m, n));
    CUP_TRY(take_line(m, n));
    CUP_TRY(check_driver(m, cup__driver.cuEventCreate(&n->begun, CU_EVENT_DISABLE_TIMING),
                         "making an event"));
    CUP_TRY(check_driver(m, cup__driver.cuEventCreate(&n->done, CU_EVENT_DISABLE_TIMING),
                         "making an event"));
    cup__rope_add(m->mesh, &n->rope);
    return CUP_OK;
}

static void set_beside(cup__gpus *n, bool on)
{
    if (n->line->beside != on)
        cup__cuda_beside(n->gpu, on);
    n->line->beside = on;
}

/* Waits for what is queued. What others of the line wait for may never come where something has
 * failed, until they are given up as well. */
static void drain(const cup__gpus *n, bool failed)
{
    if (n->stream && (!failed || n->line->refs == 1))
        cup__driver.cuStreamSynchronize(n->stream);
}

static void leave_line(cup__gpus *n, bool driver)
{
    line *own = n->line, **link = &lines;
    if (!own || --own->refs > 0)
        return;
    set_beside(n, false);
    if (driver && own->stream)
        cup__driver.cuStreamDestroy(own->stream);
    pthread_mutex_lock(&lines_lock);
    while (*link != own)
        link = &(*link)->next;
    *link = own->next;
    pthread_mutex_unlock(&lines_lock);
    cup__free(own);
}

static void free_flights(cup__gpus *n, bool driver)
{
    while (n->spare) {
        cup__flying *one = n->spare;
        n->spare = one->spare;
        if (driver && one->done)
            cup__driver.cuEventDestroy(one->done);
        cup__free(one);
    }
}

void cup__nccl_close(cup__gpus *n, bool failed)
{
    if (!n)
        return;
    cup__rope_remove(n->m->mesh, &n->rope);
    bool driver = cup__launch_foreign(n->gpu, "NCCL") == CUP_OK || failed;
    if (failed)
        cup__direct_give_up(n->direct);
    if (n->handle && failed)
        cup__nccl.ncclCommAbort(n->handle);
    if (driver)
        drain(n, failed);
    cup__direct_close(n->direct, n->stream, driver, failed);
    if (n->handle && !failed)
        cup__nccl.ncclCommDestroy(n->handle);
    if (driver && n->begun)
        cup__driver.cuEventDestroy(n->begun);
    if (driver && n->done)
        cup__driver.cuEventDestroy(n->done);
    free_flights(n, driver);
    leave_line(n, driver);
    cup__free(n);
}

/* NCCL's stream goes on behind what the context has queued. */
static cup_status fork_stream(cup_comm *m)
{
    cup__gpus *n = m->nccl;
    CUP_TRY(cup__launch_foreign(n->gpu, "NCCL"));
    CUP_TRY(check_driver(m, cup__driver.cuEventRecord(n->begun, cup__cuda_stream(n->gpu)),
                         "recording an event"));
    CUP_TRY(check_driver(m, cup__driver.cuStreamWaitEvent(n->stream, n->begun, 0),
                         "waiting for an event"));
    n->line->open = true;
    n->line->queued++;
    return CUP_OK;
}

static cup_status fork(cup_comm *m)
{
    CUP_TRY(fork_stream(m));
    return check(m, cup__nccl.ncclGroupStart(), "beginning an operation");
}

static cup_status ended(cup_comm *m, ncclResult_t result, const char *doing)
{
    ncclResult_t end = cup__nccl.ncclGroupEnd();
    return check(m, result == ncclSuccess ? end : result, doing);
}

/* And the context behind that, and behind all that was begun before, by whichever communicator.
 * Nothing is left to wait for where another one's join has done so. */
cup_status cup__nccl_join(cup_comm *m)
{
    cup__gpus *n = m->nccl;
    if (!n->line->open)
        return CUP_OK;
    set_beside(n, false);
    n->line->open = false;
    CUP_TRY(cup__launch_foreign(n->gpu, "NCCL"));
    CUP_TRY(check_driver(m, cup__driver.cuEventRecord(n->done, n->stream), "recording an event"));
    return check_driver(m, cup__driver.cuStreamWaitEvent(cup__cuda_stream(n->gpu), n->done, 0),
                        "waiting for an event");
}

static cup_status join(cup_comm *m, ncclResult_t result, const char *doing)
{
    CUP_TRY(ended(m, result, doing));
    return cup__nccl_join(m);
}

static ncclDataType_t type_of(cup_dtype dtype)
{
    switch (dtype) {
    case CUP_F32: return ncclFloat32;
    case CUP_F64: return ncclFloat64;
    case CUP_F16: return ncclFloat16;
    case CUP_BF16: return ncclBfloat16;
    case CUP_I64: return ncclInt64;
    case CUP_I32: return ncclInt32;
    default: return ncclUint8; /* of one byte each, which are only moved */
    }
}

static ncclRedOp_t reduction_of(cup_combine how)
{
    static const ncclRedOp_t found[] = {[CUP_COMBINE_SUM] = ncclSum,
                                        [CUP_COMBINE_MEAN] = ncclAvg,
                                        [CUP_COMBINE_MIN] = ncclMin,
                                        [CUP_COMBINE_MAX] = ncclMax};
    return found[how];
}

static ncclResult_t reduce_all(cup_comm *m, cup_tensor *const *tensors, int count,
                               cup_combine how)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && result == ncclSuccess; i++)
        if (tensors[i]->count)
            result = cup__nccl.ncclAllReduce(tensors[i]->data, tensors[i]->data,
                                             (size_t)tensors[i]->count, type_of(tensors[i]->dtype),
                                             reduction_of(how), m->nccl->handle, m->nccl->stream);
    return result;
}

cup_status cup__nccl_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                                cup_combine how)
{
    CUP_TRY(fork(m));
    return join(m, reduce_all(m, tensors, count, how), "all_reduce");
}

cup_status cup__nccl_sum_begin(cup_comm *m, cup_tensor *const *tensors, int count)
{
    CUP_TRY(fork(m));
    set_beside(m->nccl, true);
    return ended(m, reduce_all(m, tensors, count, CUP_COMBINE_SUM), "all_reduce");
}

/* What was queued behind it is not waited for. */
cup_status cup__nccl_sum_end(cup__flying *f)
{
    cup__gpus *n = f->n;
    f->spare = n->spare;
    n->spare = f;
    if (f->number == n->line->queued)
        return cup__nccl_join(n->m);
    CUP_TRY(cup__launch_foreign(n->gpu, "NCCL"));
    return check_driver(n->m,
                        cup__driver.cuStreamWaitEvent(cup__cuda_stream(n->gpu), f->done, 0),
                        "waiting for an event");
}

static cup__flying *take_flying(cup__gpus *n)
{
    cup__flying *f = n->spare;
    if (f) {
        n->spare = f->spare;
        return f;
    }
    f = cup__calloc(1, sizeof *f);
    if (!f) {
        cup__fail(&n->m->c->error, CUP_MEMORY, "out of host memory for a sum");
        return NULL;
    }
    f->n = n;
    if (check_driver(n->m, cup__driver.cuEventCreate(&f->done, CU_EVENT_DISABLE_TIMING),
                     "making an event") == CUP_OK)
        return f;
    cup__free(f);
    return NULL;
}

static cup_status sum_by_nccl(cup_comm *m, const cup_tensor *from, const cup_tensor *to)
{
    cup__gpus *n = m->nccl;
    set_beside(n, true);
    CUP_TRY(check(m, cup__nccl.ncclGroupStart(), "beginning an operation"));
    return ended(m,
                 cup__nccl.ncclAllReduce(from->data, to->data, (size_t)from->count,
                                         type_of(from->dtype), ncclSum, n->handle, n->stream),
                 "all_reduce");
}

cup_status cup__nccl_direct(cup_comm *m)
{
    cup__gpus *n = m->nccl;
    return n->direct ? CUP_OK : cup__direct_open(m, n->gpu, n->stream, &n->direct);
}

bool cup__nccl_is_direct(const cup_comm *m)
{
    return m->nccl->direct != NULL;
}

cup_status cup__nccl_sum_to(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__flying **out)
{
    cup__gpus *n = m->nccl;
    cup__flying *f = take_flying(n);
    if (!f)
        return m->c->error.status;
    *out = f;
    CUP_TRY(fork_stream(m));
    f->number = n->line->queued;
    CUP_TRY(n->direct ? cup__direct_sum(n->direct, from, to, n->stream) : sum_by_nccl(m, from, to));
    return check_driver(m, cup__driver.cuEventRecord(f->done, n->stream), "recording an event");
}

cup_status cup__nccl_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                    cup_combine how)
{
    CUP_TRY(fork(m));
    return join(m,
                cup__nccl.ncclReduceScatter(from->data, to->data, (size_t)to->count,
                                            type_of(to->dtype), reduction_of(how),
                                            m->nccl->handle, m->nccl->stream),
                "reduce_scatter");
}

cup_status cup__nccl_all_gather(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    CUP_TRY(fork(m));
    return join(m,
                cup__nccl.ncclAllGather(from->data, to->data, (size_t)from->count,
                                        type_of(to->dtype), m->nccl->handle, m->nccl->stream),
                "all_gather");
}

cup_status cup__nccl_broadcast(cup_comm *m, cup_tensor *const *tensors, int count, int root)
{
    ncclResult_t result = ncclSuccess;
    CUP_TRY(fork(m));
    for (int i = 0; i < count && result == ncclSuccess; i++)
        if (tensors[i]->count)
            result = cup__nccl.ncclBroadcast(tensors[i]->data, tensors[i]->data,
                                             (size_t)tensors[i]->count, type_of(tensors[i]->dtype),
                                             root, m->nccl->handle, m->nccl->stream);
    return join(m, result, "broadcast");
}

/* All in one group, beside what the context goes on with. */
cup_status cup__nccl_owned_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                 int count, bool sums)
{
    ncclResult_t result = ncclSuccess;
    CUP_TRY(fork(m));
    set_beside(m->nccl, true);
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const cup_tensor *t = tensors[i];
        if (t->count && sums)
            result = cup__nccl.ncclReduce(t->data, t->data, (size_t)t->count, type_of(t->dtype),
                                          ncclSum, owners[i], m->nccl->handle, m->nccl->stream);
        else if (t->count)
            result = cup__nccl.ncclBroadcast(t->data, t->data, (size_t)t->count, type_of(t->dtype),
                                             owners[i], m->nccl->handle, m->nccl->stream);
    }
    return ended(m, result, sums ? "reduce" : "broadcast");
}

cup_status cup__nccl_all_to_all(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    cup__gpus *n = m->nccl;
    size_t count = (size_t)(from->count / m->count);
    size_t bytes = count * (size_t)cup_dtype_size(from->dtype);
    ncclResult_t result = ncclSuccess;
    CUP_TRY(fork(m));
    for (int i = 0; i < m->count && result == ncclSuccess; i++) {
        result = cup__nccl.ncclSend((char *)from->data + bytes * (size_t)i, count,
                                    type_of(from->dtype), i, n->handle, n->stream);
        if (result == ncclSuccess)
            result = cup__nccl.ncclRecv((char *)to->data + bytes * (size_t)i, count,
                                        type_of(to->dtype), i, n->handle, n->stream);
    }
    return join(m, result, "all_to_all");
}

cup_status cup__nccl_send(cup_comm *m, cup_tensor *t, int peer, bool receives)
{
    cup__gpus *n = m->nccl;
    CUP_TRY(fork(m));
    ncclResult_t result =
        receives ? cup__nccl.ncclRecv(t->data, (size_t)t->count, type_of(t->dtype), peer,
                                      n->handle, n->stream)
                 : cup__nccl.ncclSend(t->data, (size_t)t->count, type_of(t->dtype), peer,
                                      n->handle, n->stream);
    return join(m, result, receives ? "receive" : "send");
}

cup_status cup__nccl_rotate_begin(cup_comm *m, cup_tensor *const *from, cup_tensor *const *to,
                                  int count)
{
    cup__gpus *n = m->nccl;
    int next = (m->rank + 1) % m->count, before = (m->rank + m->count - 1) % m->count;
    ncclResult_t result = ncclSuccess;
    CUP_TRY(fork(m));
    set_beside(n, true);
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        size_t size = (size_t)from[i]->count;
        result = cup__nccl.ncclSend(from[i]->data, size, type_of(from[i]->dtype), next, n->handle,
                                    n->stream);
        if (result == ncclSuccess)
            result = cup__nccl.ncclRecv(to[i]->data, size, type_of(to[i]->dtype), before,
                                        n->handle, n->stream);
    }
    return ended(m, result, "rotate");
}
