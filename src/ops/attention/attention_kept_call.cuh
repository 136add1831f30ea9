/* The arguments of attention_kept.cu, as the host fills them and the kernel reads them. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_KEPT_CALL_CUH
#define CUP_OPS_ATTENTION_ATTENTION_KEPT_CALL_CUH

#define KEPT_THREADS 256

typedef struct kept_call {
    void *y;
    const void *random;
    long long count, heads, queries, keys;
    long long others, first; /* as in attention_call.cuh */
    double factor;
    unsigned sequence, threshold;
} kept_call;

#endif
