/* Collective operations on host memory, by exchanges between all at once. What is reduced is cut
 * into a share for each process, which adds up all versions of its share in the order of the ranks,
 * so that the bits are the same on all of them and run after run. */
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"

#define VERSIONS 0  /* numbers of stages */
#define TRANSFERS 1

static cup__transfer *transfers_of(cup_comm *m)
{
    size_t bytes = (size_t)m->count * (sizeof(cup__transfer) + sizeof(void *));
    cup__transfer *list = cup__stage(m, TRANSFERS, bytes);
    if (list)
        memset(list, 0, bytes);
    return list;
}

static uint32_t detail_of(cup_dtype dtype, cup_combine how)
{
    return (uint32_t)dtype | (uint32_t)how << 8;
}

/* Where the share of process i begins. */
static int64_t share(const cup_comm *m, int64_t count, int i)
{
    return (int64_t)((__int128)count * i / m->count);
}

/* Takes all versions of the own share of `from` and puts their reduction into `to`. */
static cup_status take_versions(cup_comm *m, cup__block from, char *to, cup_combine how)
{
    int64_t first = share(m, from.count, m->rank);
    int64_t mine = share(m, from.count, m->rank + 1) - first;
    size_t size = (size_t)cup_dtype_size(from.dtype), bytes = (size_t)mine * size;
    char *versions = cup__stage(m, VERSIONS, bytes * (size_t)m->count + 1);
    cup__transfer *list = transfers_of(m);
    if (!versions || !list)
        return m->c->error.status;
    const void **parts = (const void **)(void *)(list + m->count);
    char *data = from.data;
    for (int i = 0; i < m->count; i++) {
        int64_t at = share(m, from.count, i), end = share(m, from.count, i + 1);
        parts[i] = i == m->rank ? data + (size_t)first * size : versions + bytes * (size_t)i;
        list[i] = (cup__transfer){.out = data + (size_t)at * size,
                                  .out_bytes = (size_t)(end - at) * size,
                                  .in = versions + bytes * (size_t)i,
                                  .in_bytes = bytes,
                                  .sends = true,
                                  .receives = true};
    }
    CUP_TRY(cup__exchange(m, detail_of(from.dtype, how), list));
    cup__fold_blocks(parts, m->count, from.dtype, how, mine, to);
    return CUP_OK;
}

cup_status cup__host_all_reduce(cup_comm *m, cup__block b, cup_combine how)
{
    size_t size = (size_t)cup_dtype_size(b.dtype);
    char *data = b.data, *own = data + (size_t)share(m, b.count, m->rank) * size;
    CUP_TRY(take_versions(m, b, own, how));
    cup__transfer *list = transfers_of(m);
    if (!list)
        return m->c->error.status;
    int64_t mine = share(m, b.count, m->rank + 1) - share(m, b.count, m->rank);
    for (int i = 0; i < m->count; i++) {
        int64_t at = share(m, b.count, i), end = share(m, b.count, i + 1);
        list[i] = (cup__transfer){.out = own,
                                  .out_bytes = (size_t)mine * size,
                                  .in = data + (size_t)at * size,
                                  .in_bytes = (size_t)(end - at) * size,
                                  .sends = true,
                                  .receives = true};
    }
    return cup__exchange(m, detail_of(b.dtype, how), list);
}

cup_status cup__host_reduce_scatter(cup_comm *m, cup__block from, void *to, cup_combine how)
{
    return take_versions(m, from, to, how);
}

cup_status cup__host_all_gather(cup_comm *m, cup__block from, void *to)
{
    size_t bytes = (size_t)from.count * (size_t)cup_dtype_size(from.dtype);
    cup__transfer *list = transfers_of(m);
    if (!list)
        return m->c->error.status;
    for (int i = 0; i < m->count; i++)
        list[i] = (cup__transfer){.out = from.data,
                                  .out_bytes = bytes,
                                  .in = (char *)to + bytes * (size_t)i,
                                  .in_bytes = bytes,
                                  .sends = true,
                                  .receives = true};
    char *own = (char *)to + bytes * (size_t)m->rank;
    if (bytes && own != (char *)from.data)
        memcpy(own, from.data, bytes);
    return cup__exchange(m, detail_of(from.dtype, CUP_COMBINE_SUM), list);
}

cup_status cup__host_broadcast(cup_comm *m, void *data, size_t bytes, int root)
{
    cup__transfer *list = transfers_of(m);
    if (!list)
        return m->c->error.status;
    for (int i = 0; i < m->count; i++) {
        if (m->rank == root)
            list[i] = (cup__transfer){.out = data, .out_bytes = bytes, .sends = true};
        else if (i == root)
            list[i] = (cup__transfer){.in = data, .in_bytes = bytes, .receives = true};
    }
    return cup__exchange(m, (uint32_t)root, list);
}

cup_status cup__host_sum_owned(cup_comm *m, cup__block b, const int64_t *starts)
{
    size_t size = (size_t)cup_dtype_size(b.dtype);
    int64_t mine = starts[m->rank + 1] - starts[m->rank];
    size_t bytes = (size_t)mine * size;
    char *data = b.data, *versions = cup__stage(m, VERSIONS, bytes * (size_t)m->count + 1);
    cup__transfer *list = transfers_of(m);
    if (!versions || !list)
        return m->c->error.status;
    const void **parts = (const void **)(void *)(list + m->count);
    for (int i = 0; i < m->count; i++) {
        char *at = data + (size_t)starts[i] * size;
        parts[i] = i == m->rank ? at : versions + bytes * (size_t)i;
        list[i] = (cup__transfer){.out = at,
                                  .out_bytes = (size_t)(starts[i + 1] - starts[i]) * size,
                                  .in = versions + bytes * (size_t)i,
                                  .in_bytes = bytes,
                                  .sends = true,
                                  .receives = true};
    }
    CUP_TRY(cup__exchange(m, detail_of(b.dtype, CUP_COMBINE_SUM), list));
    cup__fold_blocks(parts, m->count, b.dtype, CUP_COMBINE_SUM, mine,
                     data + (size_t)starts[m->rank] * size);
    return CUP_OK;
}

cup_status cup__host_bring(cup_comm *m, cup__block b, const int64_t *starts)
{
    size_t size = (size_t)cup_dtype_size(b.dtype);
    char *data = b.data;
    cup__transfer *list = transfers_of(m);
    if (!list)
        return m->c->error.status;
    for (int i = 0; i < m->count; i++)
        list[i] = (cup__transfer){
            .out = data + (size_t)starts[m->rank] * size,
            .out_bytes = (size_t)(starts[m->rank + 1] - starts[m->rank]) * size,
            .in = data + (size_t)starts[i] * size,
            .in_bytes = (size_t)(starts[i + 1] - starts[i]) * size,
            .sends = true,
            .receives = true};
    return cup__exchange(m, detail_of(b.dtype, CUP_COMBINE_SUM), list);
}

cup_status cup__host_all_to_all(cup_comm *m, cup__block from, void *to)
{
    size_t bytes = (size_t)(from.count / m->count) * (size_t)cup_dtype_size(from.dtype);
    cup__transfer *list = transfers_of(m);
    if (!list)
        return m->c->error.status;
    for (int i = 0; i < m->count; i++)
        list[i] = (cup__transfer){.out = (char *)from.data + bytes * (size_t)i,
                                  .out_bytes = bytes,
                                  .in = (char *)to + bytes * (size_t)i,
                                  .in_bytes = bytes,
                                  .sends = true,
                                  .receives = true};
    if (bytes)
        memcpy((char *)to + bytes * (size_t)m->rank,
               (char *)from.data + bytes * (size_t)m->rank, bytes);
    return cup__exchange(m, detail_of(from.dtype, CUP_COMBINE_SUM), list);
}
