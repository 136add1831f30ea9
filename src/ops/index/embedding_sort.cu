/* Puts the places of ids in order, by id and then by place, by counting, and sums dtable[r,:] =
 * sum of dy[i,:] over the places i whose id is r where these are fewer than PIECE. The bits are the
 * same in every run.
 *
 * Each block owns the rows that it was dealt, looks at all ids, and so knows by itself how many
 * places come before its own; each warp counts and puts in order a segment of the ids. Longer runs
 * are told to embedding_grad.cu by `pieces`. Meanwhile the memory works: `ahead` pieces of dy come
 * into the L2 cache, and with CLEAR rows without places are cleared by bulk stores. Then groups of
 * GROUP threads share the block's places evenly, whole rows each. Grid: blocks of 1024 threads.
 * Bytes: the ids, for each block from the L2 cache; dy once, dtable once. */
#define THREADS 1024
#include "embedding.cuh"
#include "scan.cuh"

/* Knobs: CUP_ID, CLEAR (rows are a multiple of 16 bytes, and aligned so), AHEAD (some of dy is
 * fetched ahead; it is aligned to 16 bytes). */
#define BULK (CLEAR && __CUDA_ARCH__ >= 900)
#define ZEROS 2048 /* bytes */
#define WARPS (THREADS / 32)
#define HELD 32 /* ids that a thread keeps between counting and placing */
#define NONE 0x7fffffff

typedef dtype_of<CUP_ID>::type id_type;

/* Which row of the table a row of this block is. */
DEVICE int64_t row_of(int row)
{
    return (int64_t)row * gridDim.x + blockIdx.x;
}

/* The ids at `at`, `at` + 32, ...: which of the block's rows they are, or NONE. Returns how many
 * are of rows of blocks before this one. */
DEVICE int32_t read_ids(int32_t (&held)[HELD], const embedding_call &c, int64_t at, int64_t end)
{
    int32_t below = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t place = at + 32 * k;
        id_type id = place < end ? __ldg((const id_type *)c.ids + place) : (id_type)-1;
        bool valid = id >= 0 && id < c.rows;
        unsigned number = divided((unsigned)id, c.blocks);
        unsigned block = (unsigned)id - number * c.blocks.size;
        held[k] = valid && block == blockIdx.x ? (int32_t)number : NONE;
        below += valid && block < blockIdx.x;
    }
    return below;
}

/* `taken` has a counter for each warp and row: first how many places the warp has for it, then how
 * many earlier warps have. `next` gets where the places of each row begin. Returns whether there is
 * a long run. */
DEVICE bool count_to_places(int32_t *taken, int32_t *next, int own, int32_t below, int32_t *start)
{
    int row = (int)threadIdx.x;
    int32_t total = 0, all;
    for (int w = 0; w < WARPS && row < own; w += 16) {
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
    int32_t base = below + block_scan<THREADS>(total, &all);
    if (row < own)
        start[row] = next[row] = base;
    if (row == own - 1)
        start[own] = next[own] = base + total;
    return __syncthreads_or(total >= PIECE);
}

/* Puts one place a lane where it belongs; those of one row in the order of the lanes. */
DEVICE void put(int32_t *sorted, int32_t *taken, const int32_t *next, int32_t row, int64_t place)
{
    bool mine = row != NONE;
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

/* The pieces that begin among the places of this block's rows, which start at `next`: the row of
 * those of long runs. */
DEVICE void tell_pieces(const embedding_call &c, const int32_t *next, int own, bool long_runs)
{
    for (int64_t p = (next[0] + (int64_t)PIECE - 1) / PIECE + threadIdx.x; p * PIECE < next[own];
         p += THREADS)
        c.pieces[p] = -1;
    if (!long_runs)
        return;
    __syncthreads();
    for (int row = (int)threadIdx.x / 32; row < own; row += WARPS) {
        int32_t begin = next[row], chunks = (next[row + 1] - begin) / PIECE;
        int64_t piece = (begin + (int64_t)PIECE - 1) / PIECE;
        for (int k = (int)threadIdx.x % 32; k < chunks; k += 32)
            c.pieces[piece + k] = (int32_t)row_of(row);
    }
}

/* This block's share of dy that comes into the L2 cache while ids are counted. */
DEVICE void fetch_ahead(const embedding_call &c)
{
#if AHEAD && __CUDA_ARCH__ >= 900
    for (int64_t i = (int64_t)threadIdx.x * gridDim.x + blockIdx.x; i < c.ahead;
         i += (int64_t)THREADS * gridDim.x)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                         (const char *)c.dy + i * EMBEDDING_AHEAD),
                     "r"(EMBEDDING_AHEAD)
                     : "memory");
#endif
}

#if BULK
/* Clears a row behind the back of the threads. */
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

/* The places of rows one after another, without those of long runs. */
struct walk {
    const int32_t *next;
    int row, until;
    int32_t at, end;

    /* Goes on to a place that is there; false when all were. */
    __device__ __forceinline__ bool find()
    {
        while (at == end) {
            if (++row >= until)
                return false;
            at = next[row];
            end = next[row + 1];
            if (end - at >= PIECE)
                at = end;
        }
        return true;
    }
};

/* Sums a span of the rows from `row` on, before `until`. */
DEVICE void sum_rows(const embedding_call &c, const int32_t *sorted, const int32_t *next, int row,
                     int until, int span)
{
    walk w = {next, row - 1, until, 0, 0};
    real sum[PIECES][VEC];
    clear(sum);
    bool more = w.find();
    while (more) {
        held_row held[UNROLL];
        int code[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            code[u] = -1;
            if (!more)
                continue;
            held[u].read((const T *)c.dy, sorted[w.at], c.width, span);
            code[u] = w.row * 2 + (++w.at == w.end);
            more = w.find();
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (code[u] < 0)
                break;
            held[u].add_to(sum);
            if (code[u] % 2) {
                write_row((T *)c.table, row_of(code[u] / 2), sum, c.width, span);
                clear(sum);
            }
        }
    }
}

/* The first row whose places begin at `place` or later. */
DEVICE int row_from(const int32_t *next, int own, int32_t place)
{
    int low = 0, high = own;
    while (low < high) {
        int middle = (low + high) / 2;
        if (next[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Each group the rows whose places begin in its share of the block's. */
DEVICE void sum_block(const embedding_call &c, const int32_t *sorted, const int32_t *next, int own)
{
    int group = (int)threadIdx.x / GROUP;
    int64_t members = next[own] - next[0];
    int row = row_from(next, own, next[0] + (int32_t)(members * group / GROUPS));
    int until = row_from(next, own, next[0] + (int32_t)(members * (group + 1) / GROUPS));
    for (int span = 0; span < c.spans; span++)
        sum_rows(c, sorted, next, row, until, span);
}

#if !BULK
DEVICE void clear_rows(const embedding_call &c, const int32_t *next, int own)
{
    real zeros[PIECES][VEC];
    clear(zeros);
    for (int row = (int)threadIdx.x / GROUP; row < own; row += GROUPS)
        for (int span = 0; span < c.spans && next[row] == next[row + 1]; span++)
            write_row((T *)c.table, row_of(row), zeros, c.width, span);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_sort(const __grid_constant__ embedding_call c)
{
    extern __shared__ int32_t taken[];
    let_next_kernel_start();
    fetch_ahead(c);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int own = rows_of_block(c, blockIdx.x);
    for (int i = (int)threadIdx.x; i < WARPS * own; i += THREADS)
        taken[i] = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < c.arrivals;
         i += (int64_t)gridDim.x * THREADS)
        c.arrived[i] = 0;
#if BULK
    __shared__ alignas(128) uint4 zeros[ZEROS / 16];
    if (threadIdx.x < ZEROS / 16)
        zeros[threadIdx.x] = make_uint4(0, 0, 0, 0);
    publish_shared();
#endif
    __syncthreads();
    int64_t begin = warp * c.segment, end = begin + c.segment;
    end = end < c.count ? end : c.count;
    int32_t held[HELD], below = 0;
    for (int64_t at = begin; at < end; at += 32 * HELD) {
        below += read_ids(held, c, at + lane, end);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (held[k] != NONE)
                atomicAdd(&taken[warp * own + held[k]], 1);
    }
    below = block_sum(below);
    int32_t *next = taken + WARPS * own, *staged = next + own + 1;
    int32_t *start = c.start + first_of_block(c, blockIdx.x);
    bool long_runs = count_to_places(taken, next, own, below, start);
#if BULK
    int row = (int)threadIdx.x;
    if (row < own && next[row] == next[row + 1])
        clear_row((char *)c.table + row_of(row) * c.row_bytes, c.row_bytes, zeros);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
    int32_t members = next[own] - below;
    int32_t *sorted = members <= c.room ? staged - below : c.places;
    for (int64_t at = begin; at < end; at += 32 * HELD) {
        if (c.segment > 32 * HELD)
            read_ids(held, c, at + lane, end);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            put(sorted, taken + warp * own, next, held[k], at + lane + 32 * k);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < members && long_runs && members <= c.room; i += THREADS)
        c.places[below + i] = staged[i];
    tell_pieces(c, next, own, long_runs);
#if !BULK
    clear_rows(c, next, own);
#endif
    sum_block(c, sorted, next, own);
#if BULK
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
