/* Sums over GPUs in one order, for contexts that are deterministic: NCCL's order follows from the
 * way that it chooses. Each process gets all versions of a share, adds them up by an op, whose bits
 * are the same each time, and gives its sum to all. */
#include "comm/comm.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

#define PIECE ((int64_t)1 << 24) /* elements at a time, about, which as many are needed beside */

/* By sockets for tests alone: those sums have an order anyway. */
static cup_status send_shares(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    const cup__block b = {from->data, from->count, from->dtype};
    return m->nccl ? cup__nccl_all_to_all(m, from, to) : cup__host_all_to_all(m, b, to->data);
}

static cup_status gather(cup_comm *m, cup_tensor *from, cup_tensor *to)
{
    const cup__block b = {from->data, from->count, from->dtype};
    return m->nccl ? cup__nccl_all_gather(m, from, to) : cup__host_all_gather(m, b, to->data);
}

static cup_tensor *part_of(cup_tensor *t, int64_t from, int64_t count)
{
    const cup__shape shape = {.dtype = t->dtype, .ndim = 1, .size = {count}};
    return cup__tensor_view(t, &shape, &(int64_t){1}, from);
}

static cup_tensor *versions_of(cup_comm *m, const cup_tensor *t, int64_t count)
{
    return cup_tensor_new(m->c, t->dtype, 2, (int64_t[]){m->count, count});
}

static cup_tensor *add_up(cup_comm *m, cup_tensor *versions, cup_combine how)
{
    const int64_t axis = 0;
    return how == CUP_COMBINE_MEAN ? cup_mean(m->c, versions, &axis, 1, false)
                                   : cup_sum(m->c, versions, &axis, 1, false);
}

/* `count` elements, a multiple of the processes. */
static cup_status reduce_shares(cup_comm *m, cup_tensor *t, int64_t from, int64_t count,
                                cup_combine how)
{
    cup_tensor *part = part_of(t, from, count), *all = versions_of(m, t, count / m->count);
    if (!part || !all)
        return m->c->error.status;
    CUP_TRY(send_shares(m, part, all));
    cup_tensor *own = add_up(m, all, how);
    return own ? gather(m, own, part) : m->c->error.status;
}

/* Fewer than there are processes: all add up all of them. */
static cup_status reduce_few(cup_comm *m, cup_tensor *t, int64_t from, int64_t count,
                             cup_combine how)
{
    cup__device *device = m->c->device;
    cup_tensor *part = part_of(t, from, count), *all = versions_of(m, t, count);
    if (!part || !all)
        return m->c->error.status;
    CUP_TRY(gather(m, part, all));
    cup_tensor *sum = add_up(m, all, how);
    size_t bytes = (size_t)count * (size_t)cup_dtype_size(t->dtype);
    return sum ? device->calls->copy(device, part->data, sum->data, bytes) : m->c->error.status;
}

static cup_status reduce(cup_comm *m, cup_tensor *t, cup_combine how)
{
    int64_t even = t->count / m->count * m->count, most = PIECE / m->count * m->count;
    cup_status status = CUP_OK;
    for (int64_t at = 0, count; at < t->count && status == CUP_OK; at += count) {
        count = at == even ? t->count - even : even - at < most ? even - at : most;
        cup_scope_open(m->c);
        status = at == even ? reduce_few(m, t, at, count, how)
                            : reduce_shares(m, t, at, count, how);
        cup_scope_return(m->c, NULL);
    }
    return status;
}

bool cup__comm_is_ordered(const cup_comm *m, cup_dtype dtype, cup_combine how)
{
    return m->count > 1 && m->c->options.deterministic && cup__dtype_is_float(dtype) &&
           (how == CUP_COMBINE_SUM || how == CUP_COMBINE_MEAN);
}

cup_status cup__ordered_all_reduce(cup_comm *m, cup_tensor *const *tensors, int count,
                                   cup_combine how)
{
    bool was = cup_grad_recording(m->c, false);
    cup_status status = CUP_OK;
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = reduce(m, tensors[i], how);
    cup_grad_recording(m->c, was);
    return status;
}

cup_status cup__ordered_reduce_scatter(cup_comm *m, cup_tensor *from, cup_tensor *to,
                                       cup_combine how)
{
    cup__device *device = m->c->device;
    bool was = cup_grad_recording(m->c, false);
    cup_scope_open(m->c);
    cup_tensor *all = versions_of(m, to, to->count);
    cup_status status = all ? send_shares(m, from, all) : m->c->error.status;
    cup_tensor *sum = status == CUP_OK ? add_up(m, all, how) : NULL;
    if (sum)
        status = device->calls->copy(device, to->data, sum->data,
                                     (size_t)to->count * (size_t)cup_dtype_size(to->dtype));
    else if (status == CUP_OK)
        status = m->c->error.status;
    cup_scope_return(m->c, NULL);
    cup_grad_recording(m->c, was);
    return status;
}
