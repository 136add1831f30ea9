/* Lists of blocks of keys as bits: a thread for each word of each block of queries, which looks
 * through the list. Numbers that are no block are none. What is read is in the caches after the
 * first word; 4 bytes are written for each 32 blocks of keys. */
#include "attention_lists.cuh"

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_list_bits(const __grid_constant__ attention_named c)
{
    long long at = (long long)blockIdx.x * THREADS + threadIdx.x, row = at / c.words;
    if (at >= c.all)
        return;
    long long from = row / c.blocks / c.heads * c.batch + row / c.blocks % c.heads * c.head +
                     row % c.blocks * c.block;
    long long least = at % c.words * 32;
    unsigned bits = 0;
    for (long long i = 0; i < c.count; i++) {
        long long place = from + i * c.step;
        long long block =
            c.is_wide ? ((const long long *)c.numbers)[place] : ((const int *)c.numbers)[place];
        if (block >= least && block < least + 32 && block < c.key_blocks)
            bits |= 1u << (block - least);
    }
    c.bits[at] = bits;
}
