/* Makes the table of groups that the matrix product kernels read (product_call.cuh) from offsets
 * that say where groups end, and clears rows of y that belong to no group, of `width` words of 2
 * bytes. No group ends before the one before it, or behind the last row. The first block makes the
 * table; all blocks clear. */
#include "reduce.cuh"

/* A knob: OFFSET_T. */
#define THREADS 256

typedef dtype_of<OFFSET_T>::type offset;

/* By one block: all threads read, one walks over what they read. */
DEVICE void make_table(const offset *offsets, int groups, int rows, int tile, int *table)
{
    __shared__ long long ends[THREADS];
    long long begin = 0;
    int before = 0, tiles = 0, *first_tile = table + groups + 1;
    for (int g0 = 0; g0 <= groups; g0 += THREADS) {
        __syncthreads();
        if (g0 + (int)threadIdx.x < groups)
            ends[threadIdx.x] = offsets[g0 + threadIdx.x];
        __syncthreads();
        for (int g = g0; threadIdx.x == 0 && g <= groups && g < g0 + THREADS; g++) {
            int at = (int)(begin < rows ? begin : rows);
            if (g > 0)
                tiles += (at - before + tile - 1) / tile;
            table[g] = before = at;
            first_tile[g] = tiles;
            if (g < groups)
                begin = ends[g - g0] > begin ? ends[g - g0] : begin;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_table(const offset *offsets, int groups, int rows, int tile, int *table,
                  unsigned short *y, long long width)
{
    int64_t end = 0;
    for (int g = threadIdx.x; g < groups; g += THREADS)
        end = offsets[g] > end ? (int64_t)offsets[g] : end;
    end = block_max(end);
    end = end < rows ? end : rows;
    long long step = (long long)gridDim.x * THREADS;
    for (long long i = end * width + (long long)blockIdx.x * THREADS + threadIdx.x;
         i < rows * width; i += step)
        y[i] = 0;
    if (blockIdx.x == 0)
        make_table(offsets, groups, rows, tile, table);
}
