/* The types and constants of cuBLASLt that a matrix product needs, declared by us, and the calls,
 * found at run time. */
#ifndef CUP_CUDA_CUBLASLT_H
#define CUP_CUDA_CUBLASLT_H

#include "cuda/api.h"

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublasLtMatmulPreference_t;

typedef enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_8I = 3,
    CUDA_R_32I = 10,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29
} cudaDataType_t;
typedef cudaDataType_t cudaDataType;

typedef enum cublasComputeType_t {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_64F_PEDANTIC = 71,
    CUBLAS_COMPUTE_32I = 72,
    CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;

typedef enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;

/* Each value's type is in brackets. */
typedef enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
    CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,            /* [int32_t] */
    CUBLASLT_MATMUL_DESC_TRANSA = 3,                  /* [int32_t] a cublasOperation_t */
    CUBLASLT_MATMUL_DESC_TRANSB = 4,                  /* [int32_t] */
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,                /* [uint32_t] a cublasLtEpilogue_t */
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,            /* [const void *] */
    CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10,      /* [int64_t] */
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,        /* [int32_t] */
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,        /* [const void *] */
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,        /* [const void *] */
    CUBLASLT_MATMUL_DESC_C_SCALE_POINTER = 19,        /* [const void *] */
    CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20,        /* [const void *] */
    CUBLASLT_MATMUL_DESC_AMAX_D_POINTER = 21,         /* [void *] */
    CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25,             /* [int8_t] */
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26          /* [int32_t] a cudaDataType */
} cublasLtMatmulDescAttributes_t;

typedef enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
    CUBLASLT_MATRIX_LAYOUT_ORDER = 1,               /* [int32_t] a cublasLtOrder_t */
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2,                /* [uint64_t] */
    CUBLASLT_MATRIX_LAYOUT_COLS = 3,                /* [uint64_t] */
    CUBLASLT_MATRIX_LAYOUT_LD = 4,                  /* [int64_t] in elements */
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,         /* [int32_t] */
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6 /* [int64_t] in elements */
} cublasLtMatrixLayoutAttribute_t;

typedef enum cublasLtOrder_t { CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1 } cublasLtOrder_t;

typedef enum cublasLtPointerMode_t {
    CUBLASLT_POINTER_MODE_HOST = 0,
    CUBLASLT_POINTER_MODE_DEVICE = 1
} cublasLtPointerMode_t;

typedef enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_RELU = 2,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6,
    CUBLASLT_EPILOGUE_DGELU = 192,
    CUBLASLT_EPILOGUE_DGELU_BGRAD = 208,
    CUBLASLT_EPILOGUE_BGRADA = 256,
    CUBLASLT_EPILOGUE_BGRADB = 512
} cublasLtEpilogue_t;

typedef enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,     /* [uint64_t] */
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,   /* [uint32_t] */
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,   /* [uint32_t] */
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,   /* [uint32_t] */
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,   /* [uint32_t] */
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8    /* [uint32_t] */
} cublasLtMatmulPreferenceAttributes_t;

typedef enum cublasLtReductionScheme_t {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1, /* by atomics: not deterministic */
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
} cublasLtReductionScheme_t;

typedef struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#endif
