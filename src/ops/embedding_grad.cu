/* dtable[r,:] = sum of dy[i,:] over the places i whose id is r, in the order of the places.
 *
 * Keys (id, place) are sorted, in blocks of SORTED and then by merging. Pieces of PIECE sorted keys
 * are summed each by its own block: a run of one id that lies within its piece is written at once,
 * the parts of a longer one go to `parts`, two rows a piece: where the piece begins and where it
 * ends. The last kernel adds these up and clears the rows without an id. No atomics: the bits are
 * the same in every run. Bytes: dy once, dtable once, and the keys. */
#include "vec.cuh"

#ifndef CUP_ID
#define CUP_ID 5
#endif
#ifndef VEC
#define VEC 1
#endif
#define SORTED 4096
#define PIECE 64
#define THREADS 128
#define NO_KEY 0xffffffffffffffffull

typedef dtype_of<CUP_ID>::type id_type;

DEVICE int64_t id_of(uint64_t key)
{
    return (int64_t)(key >> 32);
}

/* Sorts SORTED keys in shared memory by a bitonic network. Ids that are no row go to the end. */
extern "C" __global__ void __launch_bounds__(1024)
embedding_sort(const id_type *ids, uint64_t *keys, int64_t count, int64_t rows)
{
    __shared__ uint64_t key[SORTED];
    int64_t base = (int64_t)blockIdx.x * SORTED;
    for (int i = threadIdx.x; i < SORTED; i += 1024) {
        int64_t at = base + i;
        int64_t id = at < count ? (int64_t)ids[at] : -1;
        key[i] = id >= 0 && id < rows ? (uint64_t)id << 32 | (uint64_t)at : NO_KEY;
    }
    for (int size = 2; size <= SORTED; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < SORTED / 2; pair += 1024) {
                int i = 2 * pair - (pair & (step - 1)), j = i + step;
                bool up = (i & size) == 0;
                uint64_t a = key[i], b = key[j];
                if ((a > b) == up) {
                    key[i] = b;
                    key[j] = a;
                }
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < SORTED; i += 1024)
        keys[base + i] = key[i];
}

/* How many of `count` sorted keys come before `key`; equal ones count when `also_equal`. */
DEVICE int64_t before(const uint64_t *keys, int64_t count, uint64_t key, bool also_equal)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        uint64_t there = keys[middle];
        if (there < key || (also_equal && there == key))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merges neighbouring runs of `run` keys: each key finds its place by its rank in the other run. */
extern "C" __global__ void __launch_bounds__(256)
embedding_merge(const uint64_t *keys, uint64_t *merged, int64_t total, int64_t run)
{
    int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= total)
        return;
    int64_t base = at / (2 * run) * (2 * run);
    bool second = at - base >= run;
    int64_t other = second ? base : base + run;
    int64_t length = other >= total ? 0 : total - other < run ? total - other : run;
    uint64_t key = keys[at];
    int64_t own = second ? at - base - run : at - base;
    merged[base + own + before(keys + other, length, key, second)] = key;
}

/* Where the places of each id begin and end among the sorted keys; `first` is -1 before. */
extern "C" __global__ void __launch_bounds__(256)
embedding_marks(const uint64_t *keys, int64_t count, int32_t *first, int32_t *last)
{
    int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= count || keys[at] == NO_KEY)
        return;
    int64_t id = id_of(keys[at]);
    if (at == 0 || id_of(keys[at - 1]) != id)
        first[id] = (int32_t)at;
    if (at + 1 == count || id_of(keys[at + 1]) != id)
        last[id] = (int32_t)at;
}

/* Sums a piece; blockIdx.y is a slab of THREADS vectors of the width. */
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_pieces(const T *dy, const uint64_t *keys, int64_t count, T *dtable, real *parts,
                 int32_t width)
{
    int column = blockIdx.y * THREADS + threadIdx.x;
    int64_t begin = (int64_t)blockIdx.x * PIECE;
    int length = count - begin < PIECE ? (int)(count - begin) : PIECE;
    __shared__ uint64_t key[PIECE + 2]; /* with a neighbour on both sides */
    for (int i = threadIdx.x; i < length + 2; i += THREADS) {
        int64_t at = begin + i - 1;
        key[i] = at < 0 || at >= count ? NO_KEY : keys[at];
    }
    __syncthreads();
    if (column >= width)
        return;
    real sum[VEC];
    bool open = false; /* the run began in an earlier piece */
    for (int i = 1; i <= length && key[i] != NO_KEY; i++) {
        int64_t id = id_of(key[i]), place = (int64_t)(key[i] & 0xffffffffu);
        bool starts = key[i - 1] == NO_KEY || id_of(key[i - 1]) != id;
        bool ends = key[i + 1] == NO_KEY || id_of(key[i + 1]) != id;
        real x[VEC];
        to_reals(load<VEC>(dy + (place * width + column) * VEC), x);
        if (starts || i == 1)
            open = !starts;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] = starts || i == 1 ? x[k] : sum[k] + x[k];
        if (ends && !open) {
            store(dtable + (id * width + column) * VEC, from_reals<T, VEC>(sum));
        } else if (ends || i == length) {
            int64_t part = 2 * (int64_t)blockIdx.x + !open;
#pragma unroll
            for (int k = 0; k < VEC; k++)
                parts[(part * width + column) * VEC + k] = sum[k];
        }
    }
}

/* The rest of the table: runs over several pieces, and rows that no id names. */
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_finish(const real *parts, const int32_t *first, const int32_t *last, T *dtable,
                 int32_t width)
{
    int column = blockIdx.y * THREADS + threadIdx.x;
    int64_t row = blockIdx.x;
    int32_t from = first[row], to = from < 0 ? -1 : last[row];
    if (column >= width || (from >= 0 && from / PIECE == to / PIECE))
        return;
    real sum[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum[k] = 0;
    for (int64_t piece = from / PIECE; from >= 0 && piece <= to / PIECE; piece++) {
        int64_t part = 2 * piece + (piece == from / PIECE);
        const real *x = parts + (part * width + column) * VEC;
        bool begins = piece == from / PIECE;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] = begins ? x[k] : sum[k] + x[k];
    }
    store(dtable + (row * width + column) * VEC, from_reals<T, VEC>(sum));
}
