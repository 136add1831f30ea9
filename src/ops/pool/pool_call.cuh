/* The arguments of the pooling kernels, as the host fills them and the kernels read them. An image
 * has planes of height x width pixels of values side by side. */
#ifndef CUP_OPS_POOL_POOL_CALL_CUH
#define CUP_OPS_POOL_POOL_CALL_CUH

#include "divide.cuh"

#define POOL_THREADS 256

typedef struct pool_call {
    const void *x;      /* the image, or dy */
    void *y;            /* the result, or dx */
    void *places;       /* of the largest elements in their windows */
    unsigned count;     /* vectors, or groups of results, that this launch works on */
    divisor inner;      /* vectors of a pixel */
    divisor columns;    /* of what is written: pixels, or groups, of a row; rows of a plane */
    divisor rows;
    int first_row;      /* that this launch writes */
    int height, width;  /* of the image */
    int out_height, out_width;
    int pad_height, pad_width;
    long long plane;    /* the first that this launch works on */
} pool_call;

#endif
