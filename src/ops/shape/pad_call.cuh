/* The arguments of pad.cu, as the host fills them and the kernel reads them. Dimensions stand
 * innermost first; the innermost counts elements, the kernel moves VEC of them. */
#ifndef CUP_OPS_SHAPE_PAD_CALL_CUH
#define CUP_OPS_SHAPE_PAD_CALL_CUH

#include "divide.cuh"

#define PAD_DIMS 8
#define PAD_THREADS 256

typedef struct pad_dim {
    long long size, from; /* of y and of x */
    long long before;     /* where x begins in y */
    long long step;       /* of x, from one place to the next */
    divisor size_small, from_small; /* for counts below 2^31; of the innermost, y in words */
} pad_dim;

typedef struct pad_call {
    void *y;
    const void *x;
    long long words;          /* of y */
    unsigned long long value; /* the bits of what stands around x */
    pad_dim dim[PAD_DIMS];
} pad_call;

#endif
