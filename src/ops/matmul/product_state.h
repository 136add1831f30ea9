/* What matrix products keep for a context on a GPU. */
#ifndef CUP_OPS_MATMUL_PRODUCT_STATE_H
#define CUP_OPS_MATMUL_PRODUCT_STATE_H

#include "cuda/cublaslt.h"
#include "ops/matmul/product_cuda.h"

#define CUP__PLAN_SLOTS 256
#define CUP__CUBLASLT_BYTES ((size_t)32 << 20)  /* what NVIDIA recommends for Hopper */
#define CUP__WORKSPACE_BYTES ((size_t)36 << 20) /* two tiles of sums for each multiprocessor */
#define CUP__COUNTERS 16384

typedef struct cup__cublaslt_plan cup__cublaslt_plan;

struct cup__product_state {
    cup__device *device;
    void *workspace;    /* CUP__WORKSPACE_BYTES of device memory for the sums of pieces of k */
    unsigned *counters; /* CUP__COUNTERS in device memory, zero between kernels */
    unsigned *split;    /* SPLIT_WORDS of ops/f32_split/split_call.cuh */
    cublasLtHandle_t cublaslt;
    bool cublaslt_failed;
    cup__cublaslt_plan *plans[CUP__PLAN_SLOTS]; /* of cuBLASLt, by the hash of their key */
};

/* Makes the library's handle once; false when that fails. */
bool cup__cublaslt_start(cup_context *c, cup__product_state *state);

void cup__product_cublaslt_close(cup__product_state *state);

#endif
