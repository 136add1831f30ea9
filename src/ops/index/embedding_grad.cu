/* dtable[r,:] = sum of dy[i,:] over the places i whose id is r, for runs of at least PIECE places,
 * which embedding_sort.cu has put in order; it sums the shorter ones. The bits are the same in
 * every run.
 *
 * Runs are cut into chunks of PIECE to 2 PIECE - 1 places, one chunk a block at a time, and the
 * block that is done last adds FAN of them up in order, then their sums. blockIdx.y is a span of
 * the width. Bytes: dy once, dtable once. */
#include "embedding.cuh"

#define FAN 32 /* chunks of a run that are added up at once */

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
                held[u].read(dy, places[i + u], width, (int)blockIdx.y);
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
            if (vector_at((int)blockIdx.y, p) >= width)
                break;
            const real *from = parts + (i * step * width + vector_at((int)blockIdx.y, p)) * VEC;
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

    __device__ __forceinline__ chunk(const embedding_call &c, int32_t r, int64_t p)
    {
        int32_t in_block = (int32_t)divided((unsigned)r, c.blocks);
        int32_t at = first_of_block(c, r - in_block * c.blocks.size) + in_block;
        int32_t begin = c.start[at], length = c.start[at + 1] - begin;
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

DEVICE void sum_chunk(const chunk &run, const embedding_call &c)
{
    __shared__ real part[GROUPS][SPAN];
    real sum[PIECES][VEC];
    int own, first = share_of(run.count, &own);
    add_rows(sum, (const T *)c.dy, c.places + run.from + first, own, c.width);
    T *to = (T *)c.table + (int64_t)run.row * c.width * VEC;
    if (run.chunks == 1)
        join_groups(part, sum, to, c.width);
    else
        join_chunks(run, part, sum, to, (real *)c.parts, c.arrived,
                    (int64_t)c.piece_count * gridDim.y, c.width);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_chunks(const __grid_constant__ embedding_call c)
{
    wait_for_previous_kernel();
    int64_t members = c.start[c.rows];
    for (int64_t p = blockIdx.x; p * PIECE < members; p += gridDim.x) {
        int32_t row = c.pieces[p];
        if (row < 0)
            continue;
        sum_chunk(chunk(c, row, p), c);
        __syncthreads();
    }
}
