/* The arguments of concat.cu, as the host fills them and the kernel reads them. Everything counts
 * words of VEC elements. */
#ifndef CUP_OPS_SHAPE_CONCAT_CALL_CUH
#define CUP_OPS_SHAPE_CONCAT_CALL_CUH

#include "divide.cuh"

#define CONCAT_THREADS 256
#define CONCAT_PARTS 64 /* of a launch, whose arguments have room in 4 KB */

typedef struct concat_part {
    const void *x;
    long long x_row;  /* from one row to the next */
    long long before; /* where in a row of y its own begin */
    unsigned first_block, count;
    divisor length; /* of its rows */
} concat_part;

typedef struct concat_call {
    void *y;
    long long y_row;
    int parts;
    concat_part part[CONCAT_PARTS];
} concat_call;

#endif
