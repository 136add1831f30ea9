/* The argument of round_off.cu, as the host fills it and the kernels read it. Plain C, included by
 * both. */
#ifndef CUP_OPS_LOWBIT_ROUND_OFF_CALL_CUH
#define CUP_OPS_LOWBIT_ROUND_OFF_CALL_CUH

#include "divide.cuh"

#define ROUND_OFF_MOST 4    /* tensors of a call */
#define ROUND_OFF_THREADS 256
#define ROUND_OFF_VECTOR 4  /* elements that lie side by side */
#define ROUND_OFF_AT_ONCE 4 /* vectors that a thread asks for at a time */

/* Rows of whole vectors, or one row that may end within a vector. */
typedef struct round_off_tensor {
    const float *x;
    void *y;            /* f16 or planes of 16 bits, one row behind the other */
    long long count;    /* elements */
    long long row_step; /* of x */
    divisor vectors;    /* of a row, where there are several */
    int several;        /* rows */
    int first, blocks;  /* that take this tensor, */
    long long each;     /* of whose vectors each has so many */
    float most;         /* what the largest finite element becomes */
} round_off_tensor;

typedef struct round_off_call {
    round_off_tensor of[ROUND_OFF_MOST];
    float *largest; /* of what each block has seen */
    float *scales;  /* of each tensor; for those that are cut into planes, */
    int *exponents; /* the powers of two that they were scaled by, */
    unsigned *words; /* what later kernels leave each other, made zero, or null; and whether a */
    int word_count;  /* kernel does anything only if those say that a product is done again */
    int when;
} round_off_call;

#endif
