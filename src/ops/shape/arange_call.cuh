/* The arguments of arange.cu, as the host fills them and the kernel reads them. */
#ifndef CUP_OPS_SHAPE_ARANGE_CALL_CUH
#define CUP_OPS_SHAPE_ARANGE_CALL_CUH

#define ARANGE_THREADS 256

typedef struct arange_call {
    void *y;
    long long count;
    double start, step;
} arange_call;

#endif
