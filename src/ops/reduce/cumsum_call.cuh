/* The arguments of the kernels of cumsum.cu, as the host fills them and the kernels read them. The
 * tensor is [outer, length, inner]; sums run along the length, which is cut into chunks. */
#ifndef CUP_OPS_REDUCE_CUMSUM_CALL_CUH
#define CUP_OPS_REDUCE_CUMSUM_CALL_CUH

#define CUMSUM_THREADS 256

typedef struct cumsum_call {
    const void *x;
    void *y;
    void *sums; /* [outer, inner, chunks], of each chunk; NULL with one chunk */
    long long outer, length, inner, chunk, chunks;
} cumsum_call;

#endif
