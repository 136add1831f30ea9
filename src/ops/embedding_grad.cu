/* dtable[r,:] = sum of dy[i,:] over the places i whose id is r, in the order of the places, which
 * embedding_sort.cu has put in order. The bits are the same in every run.
 *
 * embedding_rows: a group of GROUP threads for ROWS rows of less than PIECE places, cleared where
 * they have none. embedding_chunks: longer runs are cut into chunks of PIECE to 2 PIECE - 1 places,
 * one chunk a block at a time, and the block that is done last adds FAN of them up in order, then
 * their sums. blockIdx.y is a span of the width. Bytes: dy once, dtable once. */
#include "hopper.cuh"
#include "rows.cuh"

#ifndef UNROLL
#define UNROLL 2
#endif
#ifndef PIECE
#define PIECE 32 /* places */
#endif
#ifndef ROWS
#define ROWS 4 /* of a group */
#endif
#ifndef BLOCKS
#define BLOCKS 2 /* of a multiprocessor, at least */
#endif
#define FAN 32 /* chunks of a run that are added up at once */
#ifndef DEPENDENT
#define DEPENDENT 0
#endif
#ifndef CLEARED
#define CLEARED 0 /* rows without places are cleared already */
#endif
#define OVERLAP (DEPENDENT && __CUDA_ARCH__ >= 900)

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

/* Sums the rows of dy at `count` places. */
DEVICE void add_rows(real (&sum)[PIECES][VEC], const T *dy, const int32_t *places, int count,
                     int width)
{
    clear(sum);
    for (int i = 0; i < count; i += UNROLL) {
        held_row held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u < count)
                held[u].read(dy, places[i + u], width);
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

/* PIECE to 2 PIECE - 1 places of a long run; the one that piece `piece` stands for. */
struct chunk {
    int32_t row, from, count;
    int64_t run, piece; /* of the first chunk of the run, and of this one */
    int32_t chunks;

    __device__ __forceinline__ chunk(const int32_t *start, int32_t r, int64_t p)
    {
        int32_t begin = start[r], length = start[r + 1] - begin;
        row = r;
        piece = p;
        run = (begin + (int64_t)PIECE - 1) / PIECE;
        int32_t number = (int32_t)(p - run);
        chunks = length / PIECE;
        from = begin + number * PIECE;
        count = number == chunks - 1 ? length - number * PIECE : PIECE;
    }
};

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
    int64_t first = (c.piece - c.run) / FAN * FAN + c.run, after = c.run + c.chunks - first;
    int members = after < FAN ? (int)after : FAN, own;
    int64_t row = (int64_t)width * VEC;
    join_groups(part, sum, parts + c.piece * row, width);
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
    if (!is_last(arrived + arrivals + c.run * gridDim.y + blockIdx.y, fans))
        return;
    at = share_of(fans, &own);
    add_parts(sum, parts + (c.run + (int64_t)at * FAN) * row, own, FAN, width);
    join_groups(part, sum, to, width);
}

DEVICE void sum_chunk(const chunk &c, const T *dy, const int32_t *places, T *dtable, real *parts,
                      int32_t *arrived, int64_t arrivals, int width)
{
    __shared__ real part[GROUPS][SPAN];
    real sum[PIECES][VEC];
    int own, first = share_of(c.count, &own);
    add_rows(sum, dy, places + c.from + first, own, width);
    T *to = dtable + (int64_t)c.row * width * VEC;
    if (c.chunks == 1)
        join_groups(part, sum, to, width);
    else
        join_chunks(c, part, sum, to, parts, arrived, arrivals, width);
}

/* The places of ROWS rows side by side, those of long runs left out, numbered through. */
struct short_runs {
    int32_t from[ROWS], until[ROWS]; /* the first, and how many there are so far */

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
    /* The row of number i, and where among all it stands. */
    __device__ __forceinline__ int find(int i, int32_t *at) const
    {
        int row = 0;
        *at = from[0] + i;
#pragma unroll
        for (int r = 1; r < ROWS; r++)
            if (i >= until[r - 1]) {
                row = r;
                *at = from[r] + i - until[r - 1];
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

/* A group's rows: each lane looks up one place, then all add up the rows of dy there. */
DEVICE void sum_rows(const T *dy, const int32_t *places, const int32_t *start, int64_t row,
                     int32_t rows, T *dtable, int width)
{
    const uint32_t mask = GROUP == 32 ? 0xffffffffu
                                      : (1u << GROUP % 32) - 1 << threadIdx.x % 32 / GROUP * GROUP;
    int lane = (int)threadIdx.x % GROUP;
    short_runs runs;
    runs.read(start, row, rows);
    if (!CLEARED)
        clear_rows(start, row, rows, dtable, width);
    real sum[PIECES][VEC];
    clear(sum);
    int count = runs.until[ROWS - 1];
    for (int base = 0; base < count; base += GROUP) {
        int32_t at, number = base + lane < count ? base + lane : count - 1;
        int own_row = runs.find(number, &at), own_place = places[at];
        bool own_ends = number + 1 == count || runs.find(number + 1, &at) != own_row;
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
embedding_chunks(const T *dy, const int32_t *places, const int32_t *start, const int32_t *pieces,
                 int32_t piece_count, int32_t rows, T *dtable, real *parts, int32_t *arrived,
                 int32_t width)
{
#if OVERLAP
    wait_for_previous_kernel();
    let_next_kernel_start();
#endif
    int64_t arrivals = (int64_t)piece_count * gridDim.y, members = start[rows];
    for (int64_t p = blockIdx.x; p * PIECE < members; p += gridDim.x) {
        int32_t row = pieces[p];
        if (row < 0)
            continue;
        sum_chunk(chunk(start, row, p), dy, places, dtable, parts, arrived, arrivals, width);
        __syncthreads();
    }
}

/* Rows and chunks need the sort, not each other: its end is what the blocks for the chunks have
 * waited for before these could start, and they wait for those only when their work is done. */
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
embedding_rows(const T *dy, const int32_t *places, const int32_t *start, int32_t rows, T *dtable,
               int32_t width)
{
    int64_t group = (int64_t)blockIdx.x * GROUPS + (int)threadIdx.x / GROUP;
    if (group * ROWS < rows)
        sum_rows(dy, places, start, group * ROWS, rows, dtable, width);
#if OVERLAP
    wait_for_previous_kernel();
#endif
}
