/* The types and constants of NCCL that operations between GPUs need, declared by us. */
#ifndef CUP_CUDA_NCCL_H
#define CUP_CUDA_NCCL_H

#include <stddef.h>

#include "cuda/api.h"

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef enum ncclResult_t { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum ncclRedOp_t { ncclSum = 0, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;
typedef enum ncclDataType_t {
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

#endif
