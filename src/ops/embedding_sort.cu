/* Puts the places of ids in order, by id and then by place, by counting.
 *
 * Each block owns `share` rows, looks at all ids, and so knows by itself how many places come
 * before its own; each warp counts and puts in order a segment of the ids. start[r] says where the
 * places of row r begin, start[rows] how many there are; ids that are no row have none. Of places
 * PIECE apart, `pieces` tells the row when they belong to a chunk of a long run, see
 * embedding_grad.cu, else -1. Grid: rows / share blocks. Bytes: the ids, for each block from the L2
 * cache, and the places. */
#include "ptx.cuh"
#include "scan.cuh"

#ifndef CUP_ID
#define CUP_ID 5
#endif
#ifndef PIECE
#define PIECE 16 /* as in embedding_grad.cu */
#endif
#ifndef CLEAR
#define CLEAR 0 /* clears the rows of the table that have no places */
#endif
#define BULK (CLEAR && __CUDA_ARCH__ >= 900)
#define ZEROS 2048 /* bytes */
#define SORT_THREADS 1024
#define SORT_WARPS (SORT_THREADS / 32)
#define HELD 32 /* ids that a thread keeps between counting and placing */

typedef dtype_of<CUP_ID>::type id_type;

/* The ids at `at`, `at` + 32, ... less `first`; those that are no row, or not there, as `none`. */
DEVICE void read_ids(int32_t (&held)[HELD], const id_type *ids, int64_t at, int64_t end,
                     int32_t first, int32_t rows)
{
    const int32_t none = 0x7fffffff;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t place = at + 32 * k;
        id_type id = place < end ? __ldg(ids + place) : (id_type)-1;
        held[k] = id >= 0 && id < rows ? (int32_t)id - first : none;
    }
}

/* `taken` has a counter for each warp and row: first how many places the warp has for it, then how
 * many earlier warps have. `next` gets where the places of each row begin. */
DEVICE void count_to_places(int32_t *taken, int32_t *next, int own, int32_t below, int32_t *start)
{
    int row = (int)threadIdx.x;
    int32_t total = 0, all;
    for (int w = 0; w < SORT_WARPS && row < own; w += 16) {
        int32_t count[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            count[i] = taken[(w + i) * own + row];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            taken[(w + i) * own + row] = total;
            total += count[i];
        }
    }
    int32_t base = below + block_scan<SORT_THREADS>(total, &all);
    if (row >= own)
        return;
    start[row] = next[row] = base;
    if (row == own - 1)
        start[own] = next[own] = base + total;
}

/* Puts one place a lane where it belongs; those of one row in the order of the lanes. */
DEVICE void put(int32_t *sorted, int32_t *taken, const int32_t *next, int32_t row, bool mine,
                int64_t place)
{
    uint32_t members = __ballot_sync(0xffffffffu, mine);
    if (!members)
        return;
    if (mine) {
        uint32_t same = __match_any_sync(members, row);
        int32_t before = taken[row], rank = __popc(same & lanes_before());
        sorted[next[row] + before + rank] = (int32_t)place;
        __syncwarp(members);
        if (rank == 0)
            taken[row] = before + __popc(same);
    }
    __syncwarp();
}

/* The pieces that begin among the places of this block's rows, which start at `next`. */
DEVICE void tell_pieces(int32_t *pieces, const int32_t *next, int own, int32_t first)
{
    int lane = (int)threadIdx.x % 32;
    for (int64_t p = (next[0] + (int64_t)PIECE - 1) / PIECE + threadIdx.x;
         p * PIECE < next[own]; p += SORT_THREADS)
        pieces[p] = -1;
    __syncthreads();
    for (int row = (int)threadIdx.x / 32; row < own; row += SORT_WARPS) {
        int32_t begin = next[row], chunks = (next[row + 1] - begin) / PIECE;
        int64_t piece = (begin + (int64_t)PIECE - 1) / PIECE;
        for (int k = lane; k < chunks; k += 32)
            pieces[piece + k] = first + row;
    }
}

#if BULK
/* Clears a row, of a multiple of 16 bytes, behind the back of the threads. */
DEVICE void clear_row(char *row, int64_t bytes, const void *zeros)
{
    for (int64_t at = 0; at < bytes; at += ZEROS) {
        uint32_t size = bytes - at < ZEROS ? (uint32_t)(bytes - at) : ZEROS;
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(row + at),
                     "r"(shared_address(zeros)), "r"(size)
                     : "memory");
    }
}
#endif

/* `share` is at most SORT_THREADS; `segment` ids a warp; shared memory has room for `room` places;
 * `arrived` are counters to clear. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
embedding_sort(const id_type *ids, int64_t count, int64_t segment, int32_t rows, int32_t share,
               int32_t room, int32_t *places, int32_t *start, int32_t *pieces, int32_t *arrived,
               int64_t arrivals, char *table, int64_t row_bytes)
{
    extern __shared__ int32_t taken[];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int32_t first = (int32_t)blockIdx.x * share;
    int own = rows - first < share ? rows - first : share;
    for (int i = (int)threadIdx.x; i < SORT_WARPS * own; i += SORT_THREADS)
        taken[i] = 0;
    for (int64_t i = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x; i < arrivals;
         i += (int64_t)gridDim.x * SORT_THREADS)
        arrived[i] = 0;
#if BULK
    __shared__ alignas(128) uint4 zeros[ZEROS / 16];
    if (threadIdx.x < ZEROS / 16)
        zeros[threadIdx.x] = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    int64_t begin = warp * segment, end = begin + segment < count ? begin + segment : count;
    int32_t held[HELD], below = 0;
    for (int64_t at = begin; at < end; at += 32 * HELD) {
        read_ids(held, ids, at + lane, end, first, rows);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            below += held[k] < 0;
            if ((uint32_t)held[k] < (uint32_t)own)
                atomicAdd(&taken[warp * own + held[k]], 1);
        }
    }
    below = block_sum(below);
    int32_t *next = taken + SORT_WARPS * own, *staged = next + own + 1;
    count_to_places(taken, next, own, below, start + first);
    __syncthreads();
#if BULK
    int row = (int)threadIdx.x;
    if (row < own && next[row] == next[row + 1])
        clear_row(table + (first + row) * row_bytes, row_bytes, zeros);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
    int32_t members = next[own] - below;
    int32_t *sorted = members <= room ? staged - below : places;
    for (int64_t at = begin; at < end; at += 32 * HELD) {
        if (segment > 32 * HELD)
            read_ids(held, ids, at + lane, end, first, rows);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            put(sorted, taken + warp * own, next, held[k], (uint32_t)held[k] < (uint32_t)own,
                at + lane + 32 * k);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < members && members <= room; i += SORT_THREADS)
        places[below + i] = staged[i];
    tell_pieces(pieces, next, own, first);
#if BULK
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
