/* The arguments of adaptive_pool.cu, as the host fills them and the kernels read them. An image has
 * planes of height x width pixels of values side by side. */
#ifndef CUP_OPS_POOL_ADAPTIVE_CALL_CUH
#define CUP_OPS_POOL_ADAPTIVE_CALL_CUH

#include "divide.cuh"

#define ADAPTIVE_THREADS 256

typedef struct adaptive_call {
    const void *x; /* the image, or dy */
    void *y;       /* the result, or dx */
    void *places;  /* of the largest elements in their windows */
    unsigned count;         /* vectors of what is written in this launch */
    divisor inner;          /* vectors of a pixel */
    divisor in[2], out[2];  /* height and width of image and result */
    int reach;              /* the most columns a window can have */
} adaptive_call;

#endif
