/* The operations on tensors: what is asked is checked, then NCCL or the host does it. Tensors of a
 * GPU that go by sockets are brought to the host and back. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/ops.h"
#include "tensor/debug.h"

#define PACKED 3 /* number of a stage */
#define BUCKET_BYTES ((size_t)32 << 20)

static cup_status check_reduction(cup_comm *m, const char *name, const cup_tensor *t,
                                  cup_combine how)
{
    bool is_float = t->dtype == CUP_F32 || t->dtype == CUP_F64 || t->dtype == CUP_F16 ||
                    t->dtype == CUP_BF16;
    bool whole = t->dtype == CUP_I32 || t->dtype == CUP_I64;
    if ((int)how < 0 || how > CUP_COMBINE_MAX)
        return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: there is no reduction %d", name,
                         (int)how);
    if (is_float || (whole && how != CUP_COMBINE_MEAN))
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_DTYPE,
                     "%s: %s cannot be reduced so; sums, minima and maxima are of f32, f64, f16, "
                     "bf16, i32 and i64, means of floats",
                     name, cup_dtype_name(t->dtype));
}

static cup_status check_tensor(cup_comm *m, const char *name, cup_tensor *t, bool changes)
{
    char text[CUP__SHAPE_TEXT];
    if (!t)
        return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: a tensor is NULL", name);
    if (!cup__usable(t, false, name))
        return m->c->error.status;
    if (t->context != m->c || !t->contiguous)
        return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: %s %s", name,
                         cup__tensor_text(t, text),
                         t->context != m->c ? "belongs to another context than the communicator"
                                            : "must be in row-major order; cup_copy makes it so");
    return changes ? cup__tensor_change(t, name) : CUP_OK;
}

static cup_status check_pair(cup_comm *m, const char *name, cup_tensor *from, cup_tensor *to)
{
    CUP_TRY(check_tensor(m, name, from, false));
    CUP_TRY(check_tensor(m, name, to, true));
    if (from->dtype == to->dtype)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_DTYPE, "%s: from %s to %s; give both the same dtype", name,
                     cup_dtype_name(from->dtype), cup_dtype_name(to->dtype));
}

/* That `large` has as many parts like `small` as there are processes. */
static cup_status check_parts(cup_comm *m, const char *name, const cup_tensor *large,
                              const cup_tensor *small)
{
    char a[CUP__SHAPE_TEXT], b[CUP__SHAPE_TEXT];
    if (large->count % m->count == 0 && large->count / m->count == small->count)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE,
                     "%s: %s is not %d times as many elements as %s, one part for each process",
                     name, cup__tensor_text(large, a), m->count, cup__tensor_text(small, b));
}

static cup_status check_rank(cup_comm *m, const char *name, int rank, bool other)
{
    if (rank >= 0 && rank < m->count && !(other && rank == m->rank))
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: there is no %s %d among %d processes", name,
                     other ? "other process" : "process", rank, m->count);
}

static size_t bytes_of(const cup_tensor *t)
{
    return (size_t)t->count * (size_t)cup_dtype_size(t->dtype);
}

/* A tensor's elements on the host: its own memory on a CPU, else `memory` that takes a copy. */
static cup_status to_host(cup_tensor *t, void *memory, bool copy, void **out)
{
    cup__device *device = t->context->device;
    *out = device->is_cuda ? memory : t->data;
    return device->is_cuda && copy && t->count
               ? device->calls->read(device, memory, t->data, bytes_of(t))
               : CUP_OK;
}

static cup_status from_host(cup_tensor *t, const void *memory)
{
    cup__device *device = t->context->device;
    return device->is_cuda && t->count ? device->calls->write(device, t->data, memory, bytes_of(t))
                                       : CUP_OK;
}

/* Memory for so many bytes of tensors on a GPU that go by the host; nothing on a CPU. */
static cup_status host_memory(cup_comm *m, size_t bytes, char **out)
{
    *out = m->c->device->is_cuda ? cup__malloc(bytes + 1) : NULL;
    if (*out || !m->c->device->is_cuda)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for tensors on their way");
}

/* So many tensors from `first` on go together: of one dtype, and not too many bytes, for which
 * there must be memory. A large one goes alone, from where it lies. */
static int bucket_end(cup_tensor *const *tensors, int first, int count)
{
    int end = first + 1;
    size_t bytes = bytes_of(tensors[first]);
    while (end < count && tensors[end]->dtype == tensors[first]->dtype &&
           bytes + bytes_of(tensors[end]) <= BUCKET_BYTES)
        bytes += bytes_of(tensors[end++]);
    return end;
}

/* Tensors of one dtype, put behind each other or back. */
static cup_status pack(char *packed, cup_tensor *const *tensors, int count, bool back)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        cup_tensor *t = tensors[i];
        cup__device *device = t->context->device;
        size_t bytes = bytes_of(t);
        if (bytes && back)
            CUP_TRY(device->calls->write(device, t->data, packed + at, bytes));
        else if (bytes)
            CUP_TRY(device->calls->read(device, packed + at, t->data, bytes));
        at += bytes;
    }
    return CUP_OK;
}

static cup_status reduce_packed(cup_comm *m, cup_tensor *const *tensors, int count,
                                cup_combine how)
{
    cup__block b = {.dtype = tensors[0]->dtype};
    for (int i = 0; i < count; i++)
        b.count += tensors[i]->count;
    if (count == 1 && !m->c->device->is_cuda) {
        b.data = tensors[0]->data;
        return cup__host_all_reduce(m, b, how);
    }
    b.data = cup__stage(m, PACKED, (size_t)b.count * (size_t)cup_dtype_size(b.dtype) + 1);
    if (!b.data)
        return m->c->error.status;
    CUP_TRY(pack(b.data, tensors, count, false));
    CUP_TRY(cup__host_all_reduce(m, b, how));
    return pack(b.data, tensors, count, true);
}

/* The head of every operation: nothing without a communicator, or in one that failed. */
#define BEGIN(m)                                                                                   \
    if (!(m))                                                                                      \
        return CUP_ARGUMENT;                                                                       \
    CUP__DEBUG_CALL((m)->c);                                                                       \
    if ((m)->c->error.status != CUP_OK)                                                            \
    return (m)->c->error.status

/* On a GPU that is not there, where a step is rehearsed by one process alone, nothing is done. */
#define DO(m, id, call)                                                                            \
    do {                                                                                           \
        if (cup__device_is_dry((m)->c->device))                                                    \
            return CUP_OK;                                                                         \
        cup_status done = cup__operation_begin(m, id);                                             \
        if (done == CUP_OK)                                                                        \
            done = (call);                                                                         \
        cup__operation_end(m);                                                                     \
        return done;                                                                               \
    } while (0)

/* Tensors from `first` on that go the same way between GPUs. */
static int run_end(const cup_comm *m, cup_tensor *const *tensors, int first, int count,
                   cup_combine how)
{
    bool ordered = cup__comm_is_ordered(m, tensors[first]->dtype, how);
    int end = first + 1;
    while (end < count && cup__comm_is_ordered(m, tensors[end]->dtype, how) == ordered)
        end++;
    return end;
}

static cup_status all_reduce(cup_comm *m, cup_tensor *const *tensors, int count, cup_combine how)
{
    for (int i = 0, end; i < count; i = end) {
        end = m->nccl ? run_end(m, tensors, i, count, how) : bucket_end(tensors, i, count);
        CUP_TRY(!m->nccl ? reduce_packed(m, tensors + i, end - i, how)
                : cup__comm_is_ordered(m, tensors[i]->dtype, how)
                    ? cup__ordered_all_reduce(m, tensors + i, end - i, how)
                    : cup__nccl_all_reduce(m, tensors + i, end - i, how));
    }
    return CUP_OK;
}

static cup_status check_list(cup_comm *m, const char *name, cup_tensor *const *tensors, int count)
{
    if (count < 0 || (count > 0 && !tensors))
        return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: %d tensors%s", name, count,
                         tensors ? "" : " at NULL");
    for (int i = 0; i < count; i++)
        CUP_TRY(check_tensor(m, name, tensors[i], true));
    return CUP_OK;
}

cup_status cup_comm_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                               cup_combine how)
{
    BEGIN(m);
    CUP_TRY(check_list(m, "all_reduce", tensors, count));
    for (int i = 0; i < count; i++)
        CUP_TRY(check_reduction(m, "all_reduce", tensors[i], how));
    DO(m, CUP__ALL_REDUCE, all_reduce(m, tensors, count, how));
}

cup_status cup__comm_sum_begin(cup_comm *m, cup_tensor *const *tensors, int count)
{
    if (!m->nccl || m->c->options.deterministic)
        return cup_comm_all_reduce(m, tensors, count, CUP_COMBINE_SUM);
    CUP_TRY(m->c->error.status);
    CUP_TRY(check_list(m, "all_reduce", tensors, count));
    DO(m, CUP__ALL_REDUCE, cup__nccl_sum_begin(m, tensors, count));
}

static cup_status sum_to(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__flying **out)
{
    bool ordered = cup__comm_is_ordered(m, from->dtype, CUP_COMBINE_SUM);
    if (m->nccl && from->count && (!ordered || cup__nccl_is_direct(m)))
        return cup__nccl_sum_to(m, from, to, out);
    CUP_TRY(cup_copy_into(m->c, to, from));
    return all_reduce(m, &to, 1, CUP_COMBINE_SUM);
}

cup_status cup__comm_sum_to(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__flying **out)
{
    *out = NULL;
    CUP_TRY(m->c->error.status);
    CUP_TRY(check_pair(m, "all_reduce", from, to));
    CUP_TRY(check_reduction(m, "all_reduce", from, CUP_COMBINE_SUM));
    DO(m, CUP__ALL_REDUCE, sum_to(m, from, to, out));
}

cup_status cup__comm_join(cup_comm *m)
{
    return m->nccl && !cup__device_is_dry(m->c->device) ? cup__nccl_join(m) : CUP_OK;
}

/* The host's part of an operation from one tensor into another. */
static cup_status by_host(cup_comm *m, cup_tensor *from, cup_tensor *to, cup__operation_id id,
                          cup_combine how)
{
    char *memory;
    void *in, *out;
    CUP_TRY(host_memory(m, bytes_of(from) + bytes_of(to), &memory));
    cup_status status = to_host(from, memory, true, &in);
    if (status == CUP_OK)
        status = to_host(to, memory ? memory + bytes_of(from) : NULL, false, &out);
    cup__block b = {status == CUP_OK ? in : NULL, from->count, from->dtype};
    if (status == CUP_OK)
        status = id == CUP__REDUCE_SCATTER ? cup__host_reduce_scatter(m, b, out, how)
                 : id == CUP__ALL_GATHER   ? cup__host_all_gather(m, b, out)
                                           : cup__host_all_to_all(m, b, out);
    if (status == CUP_OK)
        status = from_host(to, out);
    cup__free(memory);
    return status;
}

cup_status cup_comm_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                   cup_combine how)
{
    BEGIN(m);
    CUP_TRY(check_pair(m, "reduce_scatter", from, to));
    CUP_TRY(check_parts(m, "reduce_scatter", from, to));
    CUP_TRY(check_reduction(m, "reduce_scatter", from, how));
    DO(m, CUP__REDUCE_SCATTER,
       !m->nccl ? by_host(m, from, to, CUP__REDUCE_SCATTER, how)
       : cup__comm_is_ordered(m, from->dtype, how)
           ? cup__ordered_reduce_scatter(m, from, to, how)
           : cup__nccl_reduce_scatter(m, from, to, how));
}

cup_status cup_comm_all_gather(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    BEGIN(m);
    CUP_TRY(check_pair(m, "all_gather", from, to));
    CUP_TRY(check_parts(m, "all_gather", to, from));
    DO(m, CUP__ALL_GATHER,
       m->nccl ? cup__nccl_all_gather(m, from, to)
               : by_host(m, from, to, CUP__ALL_GATHER, CUP_COMBINE_SUM));
}

cup_status cup_comm_all_to_all(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    BEGIN(m);
    CUP_TRY(check_pair(m, "all_to_all", from, to));
    if (from->count != to->count || from->count % m->count)
        return cup__fail(&m->c->error, CUP_SHAPE,
                         "all_to_all: %lld elements to %lld; both must be as many, a multiple of "
                         "the %d processes",
                         (long long)from->count, (long long)to->count, m->count);
    if (cup__tensor_overlap(from, to))
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "all_to_all: the two tensors share memory; give another one to fill");
    DO(m, CUP__ALL_TO_ALL,
       m->nccl ? cup__nccl_all_to_all(m, from, to)
               : by_host(m, from, to, CUP__ALL_TO_ALL, CUP_COMBINE_SUM));
}

static cup_status broadcast(cup_comm *m, cup_tensor *const *tensors, int count, int root)
{
    if (m->nccl)
        return cup__nccl_broadcast(m, tensors, count, root);
    for (int i = 0; i < count; i++) {
        cup_tensor *t = tensors[i];
        char *memory;
        void *host;
        CUP_TRY(host_memory(m, bytes_of(t), &memory));
        cup_status status = to_host(t, memory, m->rank == root, &host);
        if (status == CUP_OK)
            status = cup__host_broadcast(m, host, bytes_of(t), root);
        if (status == CUP_OK && m->rank != root)
            status = from_host(t, host);
        cup__free(memory);
        CUP_TRY(status);
    }
    return CUP_OK;
}

cup_status cup_comm_broadcast(cup_comm *m, cup_tensor *const *tensors, int count, int root)
{
    BEGIN(m);
    CUP_TRY(check_list(m, "broadcast", tensors, count));
    CUP_TRY(check_rank(m, "broadcast", root, false));
    DO(m, CUP__BROADCAST, broadcast(m, tensors, count, root));
}

/* Operations between two do not count among those of all, which each process may be at. */
static cup_status pass(cup_comm *m, cup_tensor *t, int peer, bool receives)
{
    if (m->nccl)
        return cup__nccl_send(m, t, peer, receives);
    cup__transfer *list = cup__calloc((size_t)m->count, sizeof *list);
    char *memory = NULL;
    void *host = NULL;
    cup_status status = list ? host_memory(m, bytes_of(t), &memory)
                             : cup__fail(&m->c->error, CUP_MEMORY,
                                         "out of host memory for tensors on their way");
    if (status == CUP_OK)
        status = to_host(t, memory, !receives, &host);
    if (status == CUP_OK) {
        list[peer] = (cup__transfer){.sends = !receives, .receives = receives};
        list[peer].out = list[peer].in = host;
        *(receives ? &list[peer].in_bytes : &list[peer].out_bytes) = bytes_of(t);
        status = cup__exchange(m, t->dtype, list);
    }
    if (status == CUP_OK && receives)
        status = from_host(t, host);
    cup__free(memory);
    cup__free(list);
    return status;
}

static cup_status pass_alone(cup_comm *m, cup_tensor *t, int peer, bool receives)
{
    uint64_t sequence = m->sequence;
    if (cup__device_is_dry(m->c->device))
        return CUP_OK;
    CUP_TRY(cup__operation_begin(m, CUP__SEND));
    m->sequence = 0;
    cup_status status = pass(m, t, peer, receives);
    m->sequence = sequence;
    cup__operation_end(m);
    return status;
}

cup_status cup_comm_send(cup_comm *m, cup_tensor *from, int to_rank)
{
    BEGIN(m);
    CUP_TRY(check_tensor(m, "send", from, false));
    CUP_TRY(check_rank(m, "send", to_rank, true));
    return pass_alone(m, from, to_rank, false);
}

cup_status cup_comm_receive(cup_comm *m, cup_tensor *to, int from_rank)
{
    BEGIN(m);
    CUP_TRY(check_tensor(m, "receive", to, true));
    CUP_TRY(check_rank(m, "receive", from_rank, true));
    return pass_alone(m, to, from_rank, true);
}

/* To the next one, and from the one before, which of two processes is the same one. */
static cup_status rotate_host(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    int next = (m->rank + 1) % m->count, before = (m->rank + m->count - 1) % m->count;
    cup__transfer *list = cup__calloc((size_t)m->count, sizeof *list);
    char *memory = NULL;
    void *out = NULL, *in = NULL;
    cup_status status = list ? host_memory(m, 2 * bytes_of(from), &memory)
                             : cup__fail(&m->c->error, CUP_MEMORY,
                                         "out of host memory for tensors on their way");
    if (status == CUP_OK)
        status = to_host(from, memory, true, &out);
    if (status == CUP_OK)
        status = to_host(to, memory ? memory + bytes_of(from) : NULL, false, &in);
    if (status == CUP_OK) {
        list[next].sends = list[before].receives = true;
        list[next].out = out;
        list[before].in = in;
        list[next].out_bytes = list[before].in_bytes = bytes_of(from);
        status = cup__exchange(m, from->dtype, list);
    }
    if (status == CUP_OK)
        status = from_host(to, in);
    cup__free(memory);
    cup__free(list);
    return status;
}

static cup_status rotate(cup_comm *m, cup_tensor *const *from, cup_tensor *const *to, int count)
{
    if (m->nccl)
        return cup__nccl_rotate_begin(m, from, to, count);
    for (int i = 0; i < count; i++)
        CUP_TRY(rotate_host(m, from[i], to[i]));
    return CUP_OK;
}

cup_status cup__comm_rotate_begin(cup_comm *m, cup_tensor *const *from, cup_tensor *const *to,
                                  int count)
{
    CUP_TRY(m->c->error.status);
    if (count == 0)
        return CUP_OK;
    for (int i = 0; i < count; i++)
        CUP_TRY(check_pair(m, "rotate", from[i], to[i]));
    DO(m, CUP__ROTATE, rotate(m, from, to, count));
}
