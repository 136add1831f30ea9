/* What the kernels of embedding's gradient share: rows of dy on their way into sums. Widths are in
 * vectors; a span is what a group of threads takes of a row at once. */
#ifndef CUP_OPS_INDEX_EMBEDDING_CUH
#define CUP_OPS_INDEX_EMBEDDING_CUH

#include "embedding_call.cuh"
#include "hopper.cuh"
#include "rows.cuh"

/* Knobs: PIECE (places), UNROLL. */

/* Which vector of a row piece `p` of this thread is. */
DEVICE int vector_at(int span, int p)
{
    return span * (GROUP * PIECES) + p * GROUP + (int)threadIdx.x % GROUP;
}

DEVICE void clear(real (&sum)[PIECES][VEC])
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[p][k] = 0;
}

/* A row of dy, held until it is added up. */
struct held_row {
    vec<T, VEC> v[PIECES];

    __device__ __forceinline__ void read(const T *dy, int64_t place, int width, int span)
    {
        const T *row = dy + place * width * VEC;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (vector_at(span, p) < width)
                v[p] = load_once<VEC>(row + vector_at(span, p) * VEC);
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

DEVICE void write_row(T *table, int64_t row, const real (&sum)[PIECES][VEC], int width, int span)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (vector_at(span, p) < width)
            store(table + (row * width + vector_at(span, p)) * VEC, from_reals<T, VEC>(sum[p]));
}

/* How many rows block `block` of the sort has. */
DEVICE int32_t rows_of_block(const embedding_call &c, unsigned block)
{
    return (int32_t)divided((unsigned)c.rows - 1 - block + c.blocks.size, c.blocks);
}

/* The number of its first one. */
DEVICE int32_t first_of_block(const embedding_call &c, unsigned block)
{
    unsigned each = divided((unsigned)c.rows, c.blocks), more = c.rows - each * c.blocks.size;
    return (int32_t)(block * each + (block < more ? block : more));
}

#endif
