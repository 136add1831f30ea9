/* What dropout in attention multiplies the probability of each score by, as attention.h numbers
 * them. Only second derivatives ask for all of it, so that each element draws its own block. Grid:
 * pieces of KEPT_THREADS elements. Bytes: y once. */
#include "attention_kept_call.cuh"
#include "philox.cuh"

extern "C" __global__ void __launch_bounds__(KEPT_THREADS)
    attention_kept_fwd(const __grid_constant__ kept_call c)
{
    long long i = (long long)blockIdx.x * KEPT_THREADS + threadIdx.x;
    if (i >= c.count)
        return;
    long long key = i % c.keys, query = i / c.keys % c.queries, head = i / c.keys / c.queries;
    head += head / c.heads * c.others + c.first;
    uint64_t down = (uint64_t)(c.queries + 15) / 16, across = (uint64_t)(c.keys + 15) / 16;
    uint64_t tile = ((uint64_t)head * down + (uint64_t)query / 16) * across + (uint64_t)key / 16;
    uint64_t block = tile * 32 + (uint64_t)(query % 8 * 4 + key % 8 / 2);
    philox_words words = philox_block((const uint64_t *)c.random, c.sequence, block);
    uint32_t e = key & 1, r = query >> 3 & 1;
    uint32_t word = e ? (r ? words.at[3] : words.at[2]) : (r ? words.at[1] : words.at[0]);
    uint32_t number = key >> 3 & 1 ? word >> 16 : word & 0xffff;
    ((T *)c.y)[i] = from_real<T>(number < c.threshold ? 0 : (real)c.factor);
}
