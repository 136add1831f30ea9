/* The types and constants of cuFFT that transforms of complex lines need, declared by us, and the
 * calls, found at run time. */
#ifndef CUP_CUDA_CUFFT_H
#define CUP_CUDA_CUFFT_H

#include "cuda/api.h"

typedef int cufftHandle;
typedef struct float2 cufftComplex; /* by pointer alone */
typedef struct double2 cufftDoubleComplex;

typedef enum cufftResult_t {
    CUFFT_SUCCESS = 0,
    CUFFT_INVALID_PLAN = 1,
    CUFFT_ALLOC_FAILED = 2,
    CUFFT_INVALID_VALUE = 4,
    CUFFT_INTERNAL_ERROR = 5,
    CUFFT_EXEC_FAILED = 6,
    CUFFT_SETUP_FAILED = 7,
    CUFFT_INVALID_SIZE = 8
} cufftResult;

typedef enum cufftType_t { CUFFT_C2C = 0x29, CUFFT_Z2Z = 0x69 } cufftType;

#define CUFFT_FORWARD -1
#define CUFFT_INVERSE 1

#endif
