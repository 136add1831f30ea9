/* The one argument of an elementwise kernel, as the host fills it and the kernel reads it. Plain C,
 * included by both. Dimensions stand innermost first, those that could be merged are merged, and
 * offsets fit 32 bits: a larger call is split by the host. */
#ifndef CUP_KERNELS_POINTWISE_CALL_CUH
#define CUP_KERNELS_POINTWISE_CALL_CUH

#include "divide.cuh"

#define POINTWISE_INPUTS 8
#define POINTWISE_ATTRIBUTES 8
#define POINTWISE_DIMS 8
#define POINTWISE_THREADS 256

/* How the elements of an input are found; `first` is the first of a unit of VEC neighbours in the
 * result, all in one row where ROW or COLUMN is used. */
#define POINTWISE_FLAT 0   /* in the order of the result: neighbours, from `first` on */
#define POINTWISE_SCALAR 1 /* one element for all */
#define POINTWISE_ROW 2    /* neighbours, from the offset of `first` on */
#define POINTWISE_COLUMN 3 /* one element for the unit, at the offset of `first` */
#define POINTWISE_GATHER 4 /* each at an offset of its own */

typedef struct pointwise_call {
    /* What every call needs comes first: a kernel that starts with cold caches waits for each line
     * of its argument that it reads. */
    void *y;
    unsigned count; /* elements of the result */
    const void *x[POINTWISE_INPUTS];
    void *second; /* the second result, of an op that has one */
    float attributes_f32[POINTWISE_ATTRIBUTES];
    double attributes[POINTWISE_ATTRIBUTES];
    divisor dim[POINTWISE_DIMS];
    int stride[POINTWISE_INPUTS][POINTWISE_DIMS]; /* in elements */
} pointwise_call;

#endif
