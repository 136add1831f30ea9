/* The arguments of the kernels of recurrence.cu, as the host fills them and the kernels read them.
 * The tensors are [outer, length, inner]; the recurrence runs along the length. */
#ifndef CUP_OPS_REDUCE_RECURRENCE_CALL_CUH
#define CUP_OPS_REDUCE_RECURRENCE_CALL_CUH

#define RECURRENCE_THREADS 128

typedef struct recurrence_call {
    const void *a, *x;
    void *y;
    long long outer, length, inner;
} recurrence_call;

#endif
