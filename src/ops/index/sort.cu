/* Stable sorts of rows: values in order, and where in its row each came from.
 *
 * sort_short: rows of up to SHORT elements in shared memory, by a bitonic network over keys and
 * places; a block takes as many rows as fit. Longer rows are sorted by digits of 8 bits, the lowest
 * first: sort_begin makes keys; then for each digit sort_count counts a tile's digits, sort_scan
 * turns counts into where each tile's share of a digit begins, and sort_move puts the tile in
 * order in shared memory and writes it out in runs; sort_end makes elements. Grid: tiles of TILE
 * along x, rows along y. */
#include "order.cuh"
#include "scan.cuh"

#ifndef SHORT
#define SHORT 2048
#endif
#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS (sizeof(T) == 8 ? 8 : 16)
#define TILE (THREADS * ITEMS)
#define DIGITS 256

/* `length` of a row, `padded` to a power of two; `rows` in all, `each` a block. */
extern "C" __global__ void __launch_bounds__(THREADS)
sort_short(const T *x, T *values, int64_t *indices, int64_t rows, int32_t length, int32_t padded,
           int32_t each)
{
    __shared__ order_type key[SHORT];
    __shared__ int32_t place[SHORT];
    int64_t first = (int64_t)blockIdx.x * each;
    int count = each * padded;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int column = i % padded;
        int64_t row = first + i / padded;
        bool there = column < length && row < rows;
        key[i] = there ? order_key(x[row * length + column]) : ~(order_type)0;
        place[i] = column; /* behind all that are there, also those with the largest key */
    }
    sort_runs(key, place, count, padded);
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        int column = i % padded;
        int64_t row = first + i / padded;
        if (column < length && row < rows) {
            values[row * length + column] = of_order_key(key[i]);
            indices[row * length + column] = place[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_begin(const T *x, order_type *key, int32_t *place, int64_t count, int64_t length)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    key[i] = order_key(x[i]);
    place[i] = (int32_t)(i % length);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_end(const order_type *key, const int32_t *place, T *values, int64_t *indices, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    values[i] = of_order_key(key[i]);
    indices[i] = place[i];
}

DEVICE int digit_of(order_type key, int shift)
{
    return (int)(key >> shift) & (DIGITS - 1);
}

/* counts[row][digit][tile] */
extern "C" __global__ void __launch_bounds__(THREADS)
sort_count(const order_type *key, int32_t *counts, int64_t length, int32_t shift)
{
    __shared__ int32_t count[DIGITS];
    int64_t row = blockIdx.y, first = (int64_t)blockIdx.x * TILE;
    count[threadIdx.x] = 0;
    __syncthreads();
    order_type held[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int64_t at = first + k * THREADS + (int)threadIdx.x;
        held[k] = at < length ? key[row * length + at] : 0;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++)
        if (first + k * THREADS + (int)threadIdx.x < length)
            atomicAdd(&count[digit_of(held[k], shift)], 1);
    __syncthreads();
    counts[(row * DIGITS + threadIdx.x) * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/* Running sums over the tiles of one digit of one row, and the sum of all in totals. */
extern "C" __global__ void __launch_bounds__(THREADS)
sort_scan(int32_t *counts, int32_t *totals, int32_t tiles)
{
    int64_t line = (int64_t)blockIdx.y * DIGITS + blockIdx.x;
    int32_t *count = counts + line * tiles, sum = 0, all;
    for (int first = 0; first < tiles; first += THREADS) {
        int i = first + (int)threadIdx.x;
        int32_t own = i < tiles ? count[i] : 0;
        int32_t before = block_scan<THREADS>(own, &all);
        if (i < tiles)
            count[i] = sum + before;
        sum += all;
    }
    if (threadIdx.x == 0)
        totals[line] = sum;
}

/* How many of the warp's items with the same digit come before each; counts them on. Items that
 * are not there are of the last digit, behind all others. */
DEVICE void rank_items(int32_t (&rank)[ITEMS], const order_type (&held)[ITEMS], int32_t *count,
                       int shift)
{
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int digit = digit_of(held[k], shift);
        uint32_t same = __match_any_sync(0xffffffffu, digit);
        int32_t before = count[digit];
        __syncwarp();
        rank[k] = before + __popc(same & lanes_before());
        if ((same & lanes_before()) == 0)
            count[digit] = before + __popc(same);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_move(const order_type *key, const int32_t *place, order_type *to_key, int32_t *to_place,
          const int32_t *counts, const int32_t *totals, int64_t length, int32_t shift)
{
    __shared__ int32_t count[WARPS][DIGITS];
    __shared__ int32_t local[DIGITS], global[DIGITS];
    __shared__ order_type sorted[TILE];
    __shared__ int32_t places[TILE];
    int64_t row = blockIdx.y, first = (int64_t)blockIdx.x * TILE, base = row * length;
    int own = length - first < TILE ? (int)(length - first) : TILE;
    int warp = (int)threadIdx.x / 32, digit = (int)threadIdx.x;
    int at = warp * (TILE / WARPS) + (int)threadIdx.x % 32;
    order_type held[ITEMS];
    int32_t rank[ITEMS], from[ITEMS];
    for (int w = 0; w < WARPS; w++)
        count[w][digit] = 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        bool there = at + 32 * k < own;
        held[k] = there ? key[base + first + at + 32 * k] : ~(order_type)0;
        from[k] = there ? place[base + first + at + 32 * k] : 0;
    }
    __syncthreads();
    rank_items(rank, held, count[warp], shift);
    __syncthreads();
    int32_t total = 0, all;
    for (int w = 0; w < WARPS; w++) {
        int32_t n = count[w][digit];
        count[w][digit] = total;
        total += n;
    }
    local[digit] = block_scan<THREADS>(total, &all);
    int32_t before = block_scan<THREADS>(totals[row * DIGITS + digit], &all);
    global[digit] = before + counts[(row * DIGITS + digit) * gridDim.x + blockIdx.x];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int d = digit_of(held[k], shift), to = local[d] + count[warp][d] + rank[k];
        sorted[to] = held[k];
        places[to] = from[k];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < own; i += THREADS) {
        int d = digit_of(sorted[i], shift);
        int64_t to = base + global[d] + (i - local[d]);
        to_key[to] = sorted[i];
        to_place[to] = places[i];
    }
}
