#include "base/parallel.h"

#include <omp.h>
#include <stdatomic.h>

static _Atomic int limit;

int cup__threads(void)
{
    int threads = atomic_load_explicit(&limit, memory_order_relaxed);
    return threads > 0 ? threads : omp_get_num_procs();
}

void cup__threads_set(int threads)
{
    atomic_store(&limit, threads);
}

void cup__parallel_for(int64_t count, int64_t grain, cup__body body, void *user)
{
    if (count <= 0)
        return;
    if (grain < 1)
        grain = 1;
    int64_t pieces = (count + grain - 1) / grain;
    int threads = cup__threads();
    if (pieces > threads)
        pieces = threads;
    if (pieces <= 1 || omp_in_parallel()) {
        body(0, count, user);
        return;
    }
#pragma omp parallel for num_threads((int)pieces) schedule(static, 1)
    for (int64_t piece = 0; piece < pieces; piece++)
        body(count / pieces * piece + count % pieces * piece / pieces,
             count / pieces * (piece + 1) + count % pieces * (piece + 1) / pieces, user);
}
