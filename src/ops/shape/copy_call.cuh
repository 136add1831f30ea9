/* The arguments of the kernels that only move elements, as the host fills them and the kernels
 * read them. Dimensions stand innermost first; strides count elements. */
#ifndef CUP_OPS_SHAPE_COPY_CALL_CUH
#define CUP_OPS_SHAPE_COPY_CALL_CUH

#include "divide.cuh"

#define COPY_DIMS 8
#define COPY_THREADS 256

/* copy.cu: `count` words; the innermost dimension counts words, and its strides go from one to the
 * next. */
typedef struct words_call {
    void *y;
    const void *x;
    unsigned count;
    int x_inner; /* distance in x of the elements of a word */
    divisor dim[COPY_DIMS];
    int x_stride[COPY_DIMS], y_stride[COPY_DIMS];
} words_call;

/* transpose.cu: matrices whose columns are neighbours in x and whose rows are neighbours in y. */
typedef struct tiles_call {
    void *y;
    const void *x;
    unsigned rows, columns;
    divisor across, down;               /* tiles of a matrix */
    long long x_row, y_column;          /* distance of rows in x, of columns in y */
    divisor dim[COPY_DIMS];             /* of the other dimensions */
    long long x_stride[COPY_DIMS], y_stride[COPY_DIMS];
} tiles_call;

#endif
