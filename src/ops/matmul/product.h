/* A batch of matrix products as all implementations take it: y = activation(factor a b + bias),
 * where a, b and y are strided views of whatever the op's inputs were. */
#ifndef CUP_OPS_MATMUL_PRODUCT_H
#define CUP_OPS_MATMUL_PRODUCT_H

#include "kernels/product_call.cuh"
#include "dispatch/op.h"

#define CUP__PRODUCT_BATCH 6 /* dimensions */

/* Element (i, j) of matrix number t is at data + i row + j column + batch offset, in elements. */
typedef struct cup__matrix {
    char *data;
    int64_t row, column;
    int64_t batch[CUP__PRODUCT_BATCH]; /* 0 where the matrix is used again */
} cup__matrix;

/* What is said of codes of 8 bits beside their places. */
typedef struct cup__scaling {
    cup_dtype b_dtype, y_dtype; /* a's is the product's */
    int kind;                   /* PRODUCT_SCALE_NONE and so on */
    product_scale a, b;
    bool fast; /* sums may stay in tensor cores that keep 14 bits of them */
} cup__scaling;

/* Dropout of the result, before anything is added to it. */
typedef struct cup__dropping {
    uint32_t threshold, rest, sequence;
    float kept;
    const uint64_t *random; /* device memory: seed and step */
    uint8_t *mask;          /* or NULL */
} cup__dropping;

/* A batch of groups whose sizes are on the device, as kernels/product_call.cuh describes them. */
typedef struct cup__groups {
    int kind;
    const int *table; /* NULL while it is not known */
} cup__groups;

typedef struct cup__product {
    cup_dtype dtype;    /* of a and b */
    cup_dtype y_dtype;  /* of all else: the same, or f32, which only wgmma can do */
    int64_t m, n, k;    /* y is m by n */
    int batch_ndim;
    int64_t batch_size[CUP__PRODUCT_BATCH], batch_count;
    cup__matrix a, b, y; /* m by k, k by n, m by n; y is row-major */
    const void *bias;    /* n elements, or NULL */
    int activation;      /* PRODUCT_GELU and so on; 0: none. All but GELU by wgmma only */
    float factor;        /* 1 but for wgmma */
    int kind;            /* PRODUCT_ADD and so on, of `other`; 0: none. By wgmma only; back through
                            swiglu, both `other` and y have 2 n columns */
    const cup__dropping *dropping; /* or NULL; wgmma only, of one matrix */
    const float *y_scale; /* where y has codes of 8 bits of a and b that have none: over this, */
    unsigned *y_most;     /* with the largest size, as bits of a float, put here; zero before */
    const void *other;   /* a matrix that lies as y does */
    void *a_sums;        /* takes the m sums of a along k, where a lies along m: wgmma; or NULL */
    void *pre;           /* as y, takes the value before the activation; or NULL */
    float *moments;      /* takes those of y's columns, see tensor/moments.h: wgmma; or NULL */
    const cup__scaling *scaling; /* of a and b that are codes of 8 bits; or NULL */
    cup__groups groups;
    bool adding;         /* to what y has: rounded to its dtype before and after; wgmma only */
    bool summing;        /* whether `a_sums` is wanted, also while there is no memory for it yet */
    bool saving;         /* whether `pre` is wanted, also while there is no memory for it yet */
    bool measuring;      /* whether `moments` are wanted, of whoever can make them */
} cup__product;

/* Describes op(a) op(b) -> y, which is row-major; leading dimensions are batches, broadcast. A
 * one-dimensional `a` is one row. Batch dimensions are merged with each other and with the rows
 * where strides allow. y.data stays to be set. */
void cup__product_make(cup__product *p, const cup_tensor *a, bool transpose_a, const cup_tensor *b,
                       bool transpose_b, const cup__shape *y);

/* Whether there is no element to write, or none that is a sum of anything. */
static inline bool cup__product_is_empty(const cup__product *p)
{
    return p->m == 0 || p->n == 0 || p->k == 0 || p->batch_count == 0;
}

static inline cup_dtype cup__product_y_dtype(const cup__product *p)
{
    return p->scaling ? p->scaling->y_dtype : p->y_dtype;
}

/* What a bias consists of: as y, or as a and b where y has codes. */
static inline cup_dtype cup__product_bias_dtype(const cup__product *p)
{
    return p->y_scale ? p->dtype : cup__product_y_dtype(p);
}

/* Whether elements that are `row` and `column` apart are neighbours in one direction, and in lines
 * that do not overlap in the other. Where a dimension has one element its stride says nothing. */
static inline bool cup__product_in_lines(int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    bool by_rows = column == 1 || columns == 1, by_columns = row == 1 || rows == 1;
    return (by_rows && (row >= columns || rows == 1)) ||
           (by_columns && (column >= rows || columns == 1));
}

/* Whether matrix kernels can read the last two dimensions where they are: neighbours in one
 * direction, lines that do not overlap in the other. And the tensor as it will be when the GPU
 * reads it: itself, or `packed`, which is then filled. */
bool cup__product_lies_well(const cup_tensor *t);
cup_tensor *cup__product_packed(cup_tensor *t, cup_tensor *packed);

/* The implementations, best first, of matmul, linear and linear_gelu. */
extern const cup__impl cup__product_impls[];

/* Where matrix `t` of the batch starts, in elements. */
int64_t cup__product_offset(const cup__product *p, const cup__matrix *m, int64_t t);

/* The tensor as a matrix: all dimensions but the last in one. A view where strides allow. */
cup_tensor *cup__rows_of(cup_context *c, cup_tensor *t);

/* The implementations on a CPU: through a BLAS, or by our own kernels. */
const char *cup__product_blas_refuses(const cup__call *call);
cup_status cup__product_blas(cup__call *call, const cup__product *p);
cup_status cup__product_blocked(cup__call *call, const cup__product *p);

/* A place where products of m, n, k have their tiles: [row, row + rows) x [column, ...). */
typedef struct cup__tile {
    int64_t row, rows, column, columns;
} cup__tile;

/* Puts sums, row-major with the given distance of rows, into y at the tile: bias and activation
 * are applied and the values converted. `sums` is f64 when y is f64, else f32, and is changed. */
void cup__product_finish(const cup__product *p, int64_t batch, const cup__tile *tile, void *sums,
                         int64_t distance);

/* Copies part of a matrix, row-major and without gaps, as f64 when it is f64, else as f32. */
void cup__product_gather(const cup__product *p, const cup__matrix *m, int64_t batch,
                         const cup__tile *part, void *to);

#endif
