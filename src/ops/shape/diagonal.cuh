/* Walking over the elements of matrices in row-major order, for eye.cu and tril.cu. */
#ifndef CUP_OPS_SHAPE_DIAGONAL_CUH
#define CUP_OPS_SHAPE_DIAGONAL_CUH

#include "diagonal_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), VEC, WIDE (2^31 elements or more). */

typedef word_of<SIZE>::type element;

struct position {
    int64_t row, column;
};

DEVICE position position_of(const diagonal_call &c, int64_t index)
{
    position p;
#if WIDE
    int64_t line = index / c.columns;
    p.column = index - line * c.columns;
    p.row = line % c.rows;
#else
    unsigned line = divided((unsigned)index, c.columns_small);
    p.column = (unsigned)index - line * c.columns_small.size;
    p.row = line - divided(line, c.rows_small) * c.rows_small.size;
#endif
    return p;
}

DEVICE void advance(const diagonal_call &c, position *p)
{
    if (++p->column < c.columns)
        return;
    p->column = 0;
    if (++p->row == c.rows)
        p->row = 0;
}

/* The elements from `begin` on, which exist only up to the count. */
DEVICE void store_up_to(const diagonal_call &c, int64_t begin, const vec<element, VEC> &v)
{
    element *y = (element *)c.y + begin;
    if (begin + VEC <= c.count) {
        store(y, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (begin + i < c.count)
            y[i] = v.at[i];
}

#endif
