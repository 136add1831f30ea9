/* The arguments of eye.cu and tril.cu, as the host fills them and the kernels read them. */
#ifndef CUP_OPS_SHAPE_DIAGONAL_CALL_CUH
#define CUP_OPS_SHAPE_DIAGONAL_CALL_CUH

#include "divide.cuh"

#define DIAGONAL_THREADS 256

typedef struct diagonal_call {
    void *y;
    const void *x;
    unsigned long long one;          /* eye: the bits of 1 */
    long long count, rows, columns;  /* elements of all matrices; of one */
    long long diagonal;
    divisor rows_small, columns_small; /* for counts below 2^31 */
} diagonal_call;

#endif
