/* Makes the table of groups that the matrix product kernels read (product_call.cuh) from offsets
 * that say where groups end, and clears rows of y that belong to no group, of `width` words of 2
 * bytes. No group ends before the one before it, or behind the last row. The first block makes the
 * table, with a thread that walks over it; all blocks clear. */
#include "reduce.cuh"

#ifndef OFFSET_T
#define OFFSET_T 4
#endif
#define THREADS 256

typedef dtype_of<OFFSET_T>::type offset;

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_table(const offset *offsets, int groups, int rows, int tile, int *table,
                  unsigned short *y, long long width)
{
    long long end = 0;
    for (int g = threadIdx.x; g < groups; g += THREADS)
        end = offsets[g] > end ? (long long)offsets[g] : end;
    end = block_max(end);
    end = end < rows ? end : rows;
    long long step = (long long)gridDim.x * THREADS;
    for (long long i = end * width + (long long)blockIdx.x * THREADS + threadIdx.x;
         i < rows * width; i += step)
        y[i] = 0;
    if (blockIdx.x > 0 || threadIdx.x > 0)
        return;
    long long begin = 0;
    int tiles = 0, *first_tile = table + groups + 1;
    for (int g = 0; g <= groups; g++) {
        int at = (int)(begin < rows ? begin : rows);
        if (g > 0)
            tiles += (at - table[g - 1] + tile - 1) / tile;
        table[g] = at;
        first_tile[g] = tiles;
        if (g < groups)
            begin = offsets[g] > begin ? (long long)offsets[g] : begin;
    }
}
