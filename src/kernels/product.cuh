/* What the matrix product kernels share: where a tile is, and what is done with its sums. */
#ifndef CUP_PRODUCT_CUH
#define CUP_PRODUCT_CUH

#include "product_call.cuh"
#ifndef Y_T /* results of 16 bits do not show the difference */
#define SHORT_MATH (CUP_T == 2 || CUP_T == 3)
#endif
#include "real_math.cuh"
#include "vec.cuh"

#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#ifndef A_ALONG
#define A_ALONG PRODUCT_ALONG_K
#endif
#ifndef B_ALONG
#define B_ALONG PRODUCT_ALONG_K
#endif

DEVICE long long batch_offset(const product_call &c, const long long *stride, long long index)
{
    long long offset = 0;
    for (int d = c.batch_ndim; d-- > 0; index /= c.batch_size[d])
        offset += index % c.batch_size[d] * stride[d];
    return offset;
}

#ifndef GROUPS
#define GROUPS 0
#endif
#ifndef LIST /* whether the kernel for lists is meant */
#define LIST 0
#endif

/* One matrix of a batch, or one group: its sides, and where a, b and y begin, in elements. */
struct one_matrix {
    long long m, k, a, b, y;
};

DEVICE one_matrix matrix_at(const product_call &c, long long index)
{
    one_matrix one = {c.m, c.k, batch_offset(c, c.a_batch, index),
                      batch_offset(c, c.b_batch, index), batch_offset(c, c.y_batch, index)};
    if (GROUPS) {
        long long begin = c.groups[index], size = c.groups[index + 1] - begin;
        if (GROUPS == PRODUCT_GROUPS_OF_ROWS) {
            one.m = size;
            one.a += begin * c.a_mn;
            one.y += begin * c.y_row;
        } else {
            one.k = size;
            one.a += begin * c.a_k;
            one.b += begin * c.b_k;
        }
    }
    return one;
}

/* The item of a list that has tile `index`, as a call; the index becomes one within the item. */
DEVICE product_call item_at(const product_list &l, long long &index)
{
    int i = 0;
    while (i + 1 < l.count && l.item[i + 1].first_tile <= index)
        i++;
    const product_item &item = l.item[i];
    index -= item.first_tile;
    product_call c = {};
    c.a = item.a;
    c.b = item.b;
    c.y = item.y;
    c.m = item.m;
    c.n = item.n;
    c.k = item.k;
    c.a_mn = l.a_along == PRODUCT_ALONG_K ? item.k : 1;
    c.a_k = l.a_along == PRODUCT_ALONG_K ? 1 : item.m;
    c.b_mn = l.b_along == PRODUCT_ALONG_K ? item.k : 1;
    c.b_k = l.b_along == PRODUCT_ALONG_K ? 1 : item.n;
    c.y_row = item.n;
    return c;
}

/* Tile number `index` of a grid of tiles, in groups of 8 rows of tiles walked column by column, so
 * that what runs at the same time shares rows of a and columns of b in the L2 cache. */
DEVICE void tile_place(long long index, long long tiles_m, long long tiles_n, long long *tile_m,
                       long long *tile_n)
{
    long long group = index / (8 * tiles_n), inside = index % (8 * tiles_n);
    long long height = tiles_m - group * 8 < 8 ? tiles_m - group * 8 : 8;
    *tile_m = group * 8 + inside % height;
    *tile_n = inside / height;
}

/* What a sum becomes before it is rounded into y; `pre` is what it was before the activation. */
template <typename Real> DEVICE Real activated(Real x)
{
#if ACTIVATION == PRODUCT_GELU
    return gelu_of(x);
#elif ACTIVATION == PRODUCT_RELU
    return x < 0 ? (Real)0 : x;
#elif ACTIVATION == PRODUCT_SILU
    return silu_of(x);
#else
    return x;
#endif
}

#endif
