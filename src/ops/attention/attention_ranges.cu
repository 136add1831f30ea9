/* What each query sees of the keys and each key of the queries, where documents lie one behind the
 * other: a thread for each position, y = 0 for queries and 1 for keys, z a batch. attention_mask.h
 * says which they are; here those of offsets that go down or too far end where the one before does,
 * or with the last position. 12 bytes a position. */
#include "attention_mask.cuh"

#define THREADS 128

struct document {
    int from, to, other_from, other_to;
};

DEVICE int end_of(const attention_ends &e, int batch, int document, int before)
{
    if (!e.ends)
        return e.positions;
    long long at = batch * e.batch + document * e.step;
    long long end = e.is_wide ? ((const long long *)e.ends)[at] : ((const int *)e.ends)[at];
    end = end > e.positions ? e.positions : end;
    return end < before ? before : (int)end;
}

DEVICE int between(long long x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_ranges(const __grid_constant__ attention_documents c)
{
    bool of_keys = blockIdx.y == 1;
    const attention_ends &own = of_keys ? c.keys : c.queries, &other = of_keys ? c.queries : c.keys;
    int position = (int)blockIdx.x * THREADS + (int)threadIdx.x, batch = (int)blockIdx.z;
    if (position >= own.positions)
        return;
    document d = {0, 0, 0, 0};
    bool found = false;
    for (int i = 0; i < c.count && !found; i++) {
        d.from = d.to;
        d.other_from = d.other_to;
        d.to = end_of(own, batch, i, d.from);
        d.other_to = end_of(other, batch, i, d.other_from);
        found = position < d.to;
    }
    /* The last query of a document stands at its last key. */
    int ahead = found ? (of_keys ? d.to - d.other_to : d.other_to - d.to) : 0;
    long long at = position + (of_keys ? -(long long)ahead : ahead);
    int low = found ? d.other_from : d.other_to;
    int first = between(at - (of_keys ? c.after : c.before), low, d.other_to);
    int end = between(at + 1 + (of_keys ? c.before : c.after), low, d.other_to);
    int *to = own.sight + 3LL * batch * own.positions + position;
    to[0] = first;
    to[own.positions] = end;
    to[2LL * own.positions] = ahead;
}
