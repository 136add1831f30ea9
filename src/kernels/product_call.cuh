/* The argument of the matrix product kernels, as the host fills it and the kernels read it. Plain
 * C, included by both. All strides are in elements; y and pre are row-major. */
#ifndef CUP_KERNELS_PRODUCT_CALL_CUH
#define CUP_KERNELS_PRODUCT_CALL_CUH

#define PRODUCT_BATCH 6
#define PRODUCT_THREADS 256

/* Along what an operand's elements are neighbours in memory. */
#define PRODUCT_ALONG_K 0
#define PRODUCT_ALONG_MN 1

/* The activations, as cup__activation counts them. */
#define PRODUCT_GELU 1
#define PRODUCT_RELU 2 /* these by wgmma.cu only */
#define PRODUCT_SILU 3
#define PRODUCT_SWIGLU 4 /* silu of the first n columns times the next n */

/* What is done with a matrix that lies as y does. */
#define PRODUCT_ADD 1       /* added to the result */
#define PRODUCT_GELU_GRAD 2 /* the result is multiplied by the derivative of gelu there */
#define PRODUCT_SWIGLU_GRAD 3 /* it is two matrices side by side, and y, too: back through swiglu */
#define PRODUCT_ADD_FIRST 4 /* added before the activation */

/* How the codes of 8-bit matrices are scaled: not; all of a, and all of b, alike; by line, which is
 * a row of a or a column of b; by line or block of 128 lines, and by block of 128 of k. */
#define PRODUCT_SCALE_NONE 0
#define PRODUCT_SCALE_ONE 1
#define PRODUCT_SCALE_LINES 2
#define PRODUCT_SCALE_BLOCKS 3
#define PRODUCT_SCALE_DEPTH 128

/* The scale of line i and block t of k is at (i >> shift) line + t k, and those of group g are
 * g group further. */
typedef struct product_scale {
    const float *data; /* null: all are 1 */
    long long line, k, group;
    int shift;
} product_scale;

/* Groups of which the device knows the sizes: rows of a that have a matrix b of their own; parts of
 * k that have a matrix y of their own. A table of ints holds where each begins, then how many rows
 * there are in all, then of how many tiles along m the groups before each consist. */
#define PRODUCT_GROUPS_OF_ROWS 1
#define PRODUCT_GROUPS_OF_DEPTH 2

typedef struct product_call {
    const void *a, *b, *bias; /* bias may be null */
    void *y, *pre;            /* pre may be null */
    long long m, n, k;
    long long a_mn, a_k, b_mn, b_k, y_row; /* distances of neighbours along m or n, and along k */
    long long batch_count;
    int batch_ndim;
    long long batch_size[PRODUCT_BATCH];
    const int *groups; /* the batch is one of groups when not null */
    long long a_batch[PRODUCT_BATCH], b_batch[PRODUCT_BATCH], y_batch[PRODUCT_BATCH];
} product_call;

/* Products of matrices of their own, as many as fit the arguments of a kernel. Element (i, k) of a
 * is at i a_mn + k a_k, where one of the two is 1; of b likewise; y is row-major. */
#define PRODUCT_LIST 64

typedef struct product_item {
    const void *a, *b;
    void *y;
    long long m, n, k;
    long long first_tile; /* tiles of the items before */
} product_item;

typedef struct product_list {
    int count, a_along, b_along; /* PRODUCT_ALONG_K or PRODUCT_ALONG_MN */
    product_item item[PRODUCT_LIST];
} product_list;

#endif
