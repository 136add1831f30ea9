/* The argument of resident.cu, as the host fills it and the kernel reads it. Plain C, included by
 * both. */
#ifndef CUP_OPS_MATMUL_RESIDENT_CALL_CUH
#define CUP_OPS_MATMUL_RESIDENT_CALL_CUH

typedef struct resident_call {
    const void *bias; /* or null */
    void *y, *pre;   /* pre may be null, as y */
    long long y_row; /* elements */
    int m, n;
    int k_tiles;
    int ahead; /* whether the kernel in front leaves weights and bias as they are */
} resident_call;

#endif
