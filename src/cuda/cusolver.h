/* The types and constants of cuSOLVER that dense factors need, declared by us, and the calls, found
 * at run time. Matrices lie column by column. */
#ifndef CUP_CUDA_CUSOLVER_H
#define CUP_CUDA_CUSOLVER_H

#include "cuda/cublaslt.h"

typedef struct cusolverDnContext *cusolverDnHandle_t;

typedef enum cusolverStatus_t {
    CUSOLVER_STATUS_SUCCESS = 0,
    CUSOLVER_STATUS_NOT_INITIALIZED = 1,
    CUSOLVER_STATUS_ALLOC_FAILED = 2,
    CUSOLVER_STATUS_INVALID_VALUE = 3,
    CUSOLVER_STATUS_ARCH_MISMATCH = 4,
    CUSOLVER_STATUS_EXECUTION_FAILED = 6,
    CUSOLVER_STATUS_INTERNAL_ERROR = 7
} cusolverStatus_t;

typedef enum cublasFillMode_t {
    CUBLAS_FILL_MODE_LOWER = 0,
    CUBLAS_FILL_MODE_UPPER = 1
} cublasFillMode_t;

typedef enum cusolverEigMode_t {
    CUSOLVER_EIG_MODE_NOVECTOR = 0,
    CUSOLVER_EIG_MODE_VECTOR = 1
} cusolverEigMode_t;

typedef struct gesvdjInfo *gesvdjInfo_t;

#endif
