/* dtable[r,:] = sum of dy[i,:] over the places i whose id is r, in the order of the places.
 *
 * embedding_sort puts keys (row, place) in order by counting: each block owns `share` rows, looks
 * at all ids, and so knows by itself how many keys come before its own. Each warp counts and
 * places a segment of the ids. embedding_sum: a group of GROUP threads for each row with fewer
 * than PIECE places, cleared when it has none; longer runs are cut into chunks of PIECE to
 * 2 PIECE - 1 keys, one chunk a block, and the block that is done last adds the chunks up in
 * order. The bits are the same in every run. Grid: blocks for pieces of the keys come first, then
 * rows; blockIdx.y is a span of the width. Bytes: dy once, dtable once, ids once a multiprocessor
 * from the L2 cache. */
#include "hopper.cuh"
#include "rows.cuh"
#include "scan.cuh"

#ifndef CUP_ID
#define CUP_ID 5
#endif
#ifndef UNROLL
#define UNROLL 2
#endif
#ifndef PIECE
#define PIECE 32 /* keys */
#endif
#ifndef ROWS
#define ROWS 8 /* of a group */
#endif
#define FAN 32 /* chunks of a run that are added up at once */
#ifndef DEPENDENT
#define DEPENDENT 0
#endif
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

/* `taken` has a counter for each warp and row: first how many keys the warp has for it, then how
 * many earlier warps have. `next` gets where the keys of each row begin. */
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
        start[own] = base + total;
}

/* Puts one key a lane into its place; keys of one row in the order of the lanes. */
DEVICE void place_keys(int2 *keys, int32_t *taken, const int32_t *next, int32_t row, bool mine,
                       int32_t first, int64_t place)
{
    uint32_t members = __ballot_sync(0xffffffffu, mine);
    if (!members)
        return;
    if (mine) {
        uint32_t same = __match_any_sync(members, row);
        int32_t before = taken[row], rank = __popc(same & lanes_before());
        keys[next[row] + before + rank] = make_int2(first + row, (int32_t)place);
        __syncwarp(members);
        if (rank == 0)
            taken[row] = before + __popc(same);
    }
    __syncwarp();
}

/* `share` is at most SORT_THREADS; `segment` ids a warp; `arrived` are counters to clear. */
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
embedding_sort(const id_type *ids, int64_t count, int64_t segment, int32_t rows, int32_t share,
               int2 *keys, int32_t *start, int32_t *arrived, int64_t arrivals)
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
    int32_t *next = taken + SORT_WARPS * own;
    count_to_places(taken, next, own, below, start + first);
    __syncthreads();
#if DEPENDENT && __CUDA_ARCH__ >= 900
    let_next_kernel_start();
#endif
    for (int64_t at = begin; at < end; at += 32 * HELD) {
        if (segment > 32 * HELD)
            read_ids(held, ids, at + lane, end, first, rows);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            place_keys(keys, taken + warp * own, next, held[k],
                       (uint32_t)held[k] < (uint32_t)own, first, at + lane + 32 * k);
    }
}

/* Which vector of a row piece `p` of this thread is. */
DEVICE int vector_at(int p)
{
    return (int)blockIdx.y * (GROUP * PIECES) + p * GROUP + (int)threadIdx.x % GROUP;
}

DEVICE void clear(real (&sum)[PIECES][VEC])
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[p][k] = 0;
}

/* A row of dy, held until it is added up; `width` is in vectors. */
struct held_row {
    vec<T, VEC> v[PIECES];

    __device__ __forceinline__ void read(const T *dy, int64_t place, int width)
    {
        const T *row = dy + place * width * VEC;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (vector_at(p) < width)
                v[p] = load_once<VEC>(row + vector_at(p) * VEC);
    }
    __device__ __forceinline__ void add_to(real (&sum)[PIECES][VEC]) const
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                sum[p][k] += to_real(v[p].at[k]);
    }
};

DEVICE void write_row(T *dtable, int64_t row, const real (&sum)[PIECES][VEC], int width)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (vector_at(p) < width)
            store(dtable + (row * width + vector_at(p)) * VEC, from_reals<T, VEC>(sum[p]));
}

/* Sums the rows of dy at `count` keys. */
DEVICE void add_rows(real (&sum)[PIECES][VEC], const T *dy, const int2 *keys, int count, int width)
{
    clear(sum);
    for (int i = 0; i < count; i += UNROLL) {
        held_row held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u < count)
                held[u].read(dy, keys[i + u].y, width);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u < count)
                held[u].add_to(sum);
    }
}

/* Adds the groups' sums up in order and writes them, as elements of another type if need be. */
template <typename Element>
DEVICE void join_groups(real (*part)[SPAN], const real (&sum)[PIECES][VEC], Element *to, int width)
{
    int group = (int)threadIdx.x / GROUP, first = (int)blockIdx.y * SPAN;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            part[group][piece_at(p) + k] = sum[p][k];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SPAN && first + i < width * VEC; i += THREADS) {
        real all = part[0][i];
        for (int g = 1; g < GROUPS; g++)
            all += part[g][i];
        to[first + i] = from_real<Element>(all);
    }
}

/* Sums `count` rows of parts that lie `step` rows apart. What other blocks have written in this
 * launch is read past the first cache. */
DEVICE void add_parts(real (&sum)[PIECES][VEC], const real *parts, int count, int64_t step,
                      int width)
{
    const int words = sizeof(real) * VEC / 16 ? sizeof(real) * VEC / 16 : 1;
    typedef vec_words<real, VEC / words> piece;
    clear(sum);
#pragma unroll 2
    for (int i = 0; i < count; i++)
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            if (vector_at(p) >= width)
                break;
            const real *from = parts + (i * step * width + vector_at(p)) * VEC;
#pragma unroll
            for (int w = 0; w < words; w++) {
                piece u;
                u.words[0] = __ldcg((const typename piece::word *)from + w);
#pragma unroll
                for (int k = 0; k < VEC / words; k++)
                    sum[p][w * (VEC / words) + k] += u.elements.at[k];
            }
        }
}

struct chunk {
    int32_t row, run, from, count, chunks;
};

/* The chunk of the row's run that begins among the PIECE keys from `begin` on, if there is one. */
DEVICE bool find_chunk(chunk *c, const int32_t *start, int32_t row, int32_t begin)
{
    c->row = row;
    c->run = start[row];
    int32_t length = start[row + 1] - c->run, before = begin > c->run ? begin - c->run : 0;
    int32_t number = (before + PIECE - 1) / PIECE;
    c->chunks = length / PIECE;
    c->from = c->run + number * PIECE;
    c->count = number == c->chunks - 1 ? length - number * PIECE : PIECE;
    return number < c->chunks && c->from - begin < PIECE;
}

/* This group's share of `count` things: the first one; how many goes to *own. */
DEVICE int share_of(int count, int *own)
{
    int each = (count + GROUPS - 1) / GROUPS, first = (int)threadIdx.x / GROUP * each;
    first = first < count ? first : count;
    *own = count - first < each ? count - first : each;
    return first;
}

/* Whether this block is the last of `count` to come here. What all have written is there then. */
DEVICE bool is_last(int32_t *arrived, int count)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(arrived, 1) == count - 1;
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

/* Adds up the chunks of a run: FAN of them by the last block of these, then their sums. */
DEVICE void join_chunks(const chunk &c, real (*part)[SPAN], real (&sum)[PIECES][VEC], T *to,
                        real *parts, int32_t *arrived, int64_t arrivals, int width)
{
    int64_t run = c.run / PIECE, piece = c.from / PIECE, first = (piece - run) / FAN * FAN + run;
    int members = run + c.chunks - first < FAN ? (int)(run + c.chunks - first) : FAN, own;
    int64_t row = (int64_t)width * VEC;
    join_groups(part, sum, parts + piece * row, width);
    if (!is_last(arrived + first * gridDim.y + blockIdx.y, members))
        return;
    int at = share_of(members, &own);
    add_parts(sum, parts + (first + at) * row, own, 1, width);
    if (c.chunks <= FAN) {
        join_groups(part, sum, to, width);
        return;
    }
    join_groups(part, sum, parts + first * row, width);
    int fans = (c.chunks + FAN - 1) / FAN;
    if (!is_last(arrived + arrivals + run * gridDim.y + blockIdx.y, fans))
        return;
    at = share_of(fans, &own);
    add_parts(sum, parts + (run + (int64_t)at * FAN) * row, own, FAN, width);
    join_groups(part, sum, to, width);
}

DEVICE void sum_piece(const T *dy, const int2 *keys, const int32_t *start, int32_t rows,
                      int32_t pieces, T *dtable, real *parts, int32_t *arrived, int width)
{
    __shared__ real part[GROUPS][SPAN];
    int32_t begin = (int32_t)blockIdx.x * PIECE, end = start[rows];
    if (begin >= end)
        return;
    chunk c;
    end = end - begin < PIECE ? end : begin + PIECE;
    if (!find_chunk(&c, start, keys[begin].x, begin) &&
        !find_chunk(&c, start, keys[end - 1].x, begin))
        return;
    real sum[PIECES][VEC];
    int own, first = share_of(c.count, &own);
    add_rows(sum, dy, keys + c.from + first, own, width);
    T *to = dtable + (int64_t)c.row * width * VEC;
    if (c.chunks == 1)
        join_groups(part, sum, to, width);
    else
        join_chunks(c, part, sum, to, parts, arrived, (int64_t)pieces * gridDim.y, width);
}

/* The keys of ROWS rows side by side, those of long runs left out, numbered through. */
struct short_runs {
    int32_t from[ROWS], until[ROWS]; /* the first key, and how many keys there are so far */

    __device__ __forceinline__ void read(const int32_t *start, int64_t row, int32_t rows)
    {
        int32_t at[ROWS + 1], all = 0;
#pragma unroll
        for (int r = 0; r <= ROWS; r++)
            at[r] = start[row + r < rows ? row + r : rows];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int32_t count = at[r + 1] - at[r];
            from[r] = at[r];
            all += count < PIECE ? count : 0;
            until[r] = all;
        }
    }
    /* The row and the key of number i. */
    __device__ __forceinline__ int find(int i, int32_t *key) const
    {
        int row = 0;
        *key = from[0] + i;
#pragma unroll
        for (int r = 1; r < ROWS; r++)
            if (i >= until[r - 1]) {
                row = r;
                *key = from[r] + i - until[r - 1];
            }
        return row;
    }
};

DEVICE void clear_rows(const int32_t *start, int64_t row, int32_t rows, T *dtable, int width)
{
    real zeros[PIECES][VEC];
    clear(zeros);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (row + r < rows && start[row + r] == start[row + r + 1])
            write_row(dtable, row + r, zeros, width);
}

/* A group's rows: each lane looks up one key, then all add up the rows that the keys name. */
DEVICE void sum_rows(const T *dy, const int2 *keys, const int32_t *start, int64_t row,
                     int32_t rows, T *dtable, int width)
{
    const uint32_t mask = GROUP == 32 ? 0xffffffffu
                                      : (1u << GROUP % 32) - 1 << threadIdx.x % 32 / GROUP * GROUP;
    int lane = (int)threadIdx.x % GROUP;
    short_runs runs;
    runs.read(start, row, rows);
    clear_rows(start, row, rows, dtable, width);
    real sum[PIECES][VEC];
    clear(sum);
    int count = runs.until[ROWS - 1];
    for (int base = 0; base < count; base += GROUP) {
        int32_t key, number = base + lane < count ? base + lane : count - 1;
        int own_row = runs.find(number, &key), next_key;
        int own_place = keys[key].y;
        bool own_ends = number + 1 == count || runs.find(number + 1, &next_key) != own_row;
        int most = count - base < GROUP ? count - base : GROUP;
        for (int i = 0; i < most; i += UNROLL) {
            held_row held[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int place = __shfl_sync(mask, own_place, (i + u) % GROUP, GROUP);
                if (i + u < most)
                    held[u].read(dy, place, width);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int code = __shfl_sync(mask, own_row * 2 + own_ends, (i + u) % GROUP, GROUP);
                if (i + u >= most)
                    break;
                held[u].add_to(sum);
                if (code % 2) {
                    write_row(dtable, row + code / 2, sum, width);
                    clear(sum);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_sum(const T *dy, const int2 *keys, const int32_t *start, int32_t rows, int32_t pieces,
              T *dtable, real *parts, int32_t *arrived, int32_t width)
{
#if DEPENDENT && __CUDA_ARCH__ >= 900
    wait_for_previous_kernel();
#endif
    if ((int64_t)blockIdx.x < pieces) {
        sum_piece(dy, keys, start, rows, pieces, dtable, parts, arrived, width);
        return;
    }
    int64_t group = ((int64_t)blockIdx.x - pieces) * GROUPS + (int)threadIdx.x / GROUP;
    if (group * ROWS < rows)
        sum_rows(dy, keys, start, group * ROWS, rows, dtable, width);
}
