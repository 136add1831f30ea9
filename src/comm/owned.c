/* Tensors that belong to one process each: sums go to their owners, values come from them. */
#include "base/memory.h"
#include "comm/comm.h"

#define PACKED 3 /* number of a stage */

/* So many tensors of one dtype, those of each owner behind each other. */
typedef struct packing {
    cup_tensor *const *tensors;
    const int *owners;
    int count;
    int64_t *starts; /* of each owner's elements, and where the last one's end */
    cup__block block;
} packing;

static cup_status make(cup_comm *m, packing *p)
{
    p->block = (cup__block){.dtype = p->tensors[0]->dtype};
    p->starts = cup__calloc((size_t)m->count + 1, sizeof *p->starts);
    if (!p->starts)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for tensors on their way");
    for (int i = 0; i < p->count; i++)
        p->starts[p->owners[i] + 1] += p->tensors[i]->count;
    for (int r = 0; r < m->count; r++)
        p->starts[r + 1] += p->starts[r];
    p->block.count = p->starts[m->count];
    p->block.data = cup__stage(
        m, PACKED, (size_t)p->block.count * (size_t)cup_dtype_size(p->block.dtype) + 1);
    return p->block.data ? CUP_OK : m->c->error.status;
}

/* Those of one owner, or of all but that one, into their places or back; -1 is no owner. */
static cup_status pack(cup_comm *m, const packing *p, int only, int but, bool back)
{
    const cup__device_calls *calls = m->c->device->calls;
    size_t size = (size_t)cup_dtype_size(p->block.dtype);
    for (int r = 0; r < m->count; r++) {
        char *at = (char *)p->block.data + (size_t)p->starts[r] * size;
        for (int i = 0; i < p->count; i++) {
            cup_tensor *t = p->tensors[i];
            size_t bytes = (size_t)t->count * size;
            if (p->owners[i] != r)
                continue;
            if (bytes && r != but && (only < 0 || r == only))
                CUP_TRY(back ? calls->write(m->c->device, t->data, at, bytes)
                             : calls->read(m->c->device, at, t->data, bytes));
            at += bytes;
        }
    }
    return CUP_OK;
}

static cup_status by_host(cup_comm *m, packing *p, bool sums)
{
    CUP_TRY(pack(m, p, sums ? -1 : m->rank, -1, false));
    CUP_TRY(sums ? cup__host_sum_owned(m, p->block, p->starts)
                 : cup__host_bring(m, p->block, p->starts));
    return pack(m, p, sums ? m->rank : -1, sums ? -1 : m->rank, true);
}

static cup_status begin(cup_comm *m, cup_tensor *const *tensors, const int *owners, int count,
                        bool sums)
{
    /* Those that have no use of a sum get it, too. */
    if (m->nccl && sums && count && cup__comm_is_ordered(m, tensors[0]->dtype, CUP_COMBINE_SUM))
        return cup__ordered_all_reduce(m, tensors, count, CUP_COMBINE_SUM);
    if (m->nccl)
        return cup__nccl_owned_begin(m, tensors, owners, count, sums);
    for (int i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && tensors[end]->dtype == tensors[i]->dtype;)
            end++;
        packing p = {.tensors = tensors + i, .owners = owners + i, .count = end - i};
        cup_status status = make(m, &p);
        if (status == CUP_OK)
            status = by_host(m, &p, sums);
        cup__free(p.starts);
        CUP_TRY(status);
    }
    return CUP_OK;
}

static cup_status operate(cup_comm *m, cup__operation_id id, cup_tensor *const *tensors,
                          const int *owners, int count)
{
    CUP_TRY(m->c->error.status);
    cup_status status = cup__operation_begin(m, id);
    if (status == CUP_OK)
        status = begin(m, tensors, owners, count, id == CUP__REDUCE);
    cup__operation_end(m);
    return status;
}

cup_status cup__comm_sum_owned_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                     int count)
{
    return operate(m, CUP__REDUCE, tensors, owners, count);
}

cup_status cup__comm_bring_begin(cup_comm *m, cup_tensor *const *tensors, const int *owners,
                                 int count)
{
    return operate(m, CUP__BROADCAST, tensors, owners, count);
}
