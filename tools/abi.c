/* Prints, as C text, what our declarations of NVIDIA's types say: values, sizes, offsets. tools/abi
 * compiles that text, and the tables of calls, against NVIDIA's own headers. */
#include <stddef.h>
#include <stdio.h>

#include "cuda/cublaslt.h"

#define SIZE(type) printf("SAME(sizeof(%s), %zu)\n", #type, sizeof(type))
#define AT(type, field)                                                                            \
    printf("SAME(offsetof(%s, %s), %zu)\n", #type, #field, offsetof(type, field))

int main(void)
{
    SIZE(CUdevice);
    SIZE(CUdeviceptr);
    SIZE(CUresult);
    SIZE(CUmemGenericAllocationHandle);
    SIZE(CUlaunchAttribute);
    AT(CUlaunchAttribute, id);
    AT(CUlaunchAttribute, value);
    SIZE(CUlaunchAttributeValue);
    AT(CUlaunchAttributeValue, clusterDim.y);
    AT(CUlaunchAttributeValue, clusterDim.z);
    AT(CUlaunchAttributeValue, cooperative);
    AT(CUlaunchAttributeValue, programmaticStreamSerializationAllowed);
    AT(CUlaunchAttributeValue, priority);
    SIZE(CUlaunchConfig);
    AT(CUlaunchConfig, gridDimX);
    AT(CUlaunchConfig, gridDimZ);
    AT(CUlaunchConfig, blockDimX);
    AT(CUlaunchConfig, blockDimZ);
    AT(CUlaunchConfig, sharedMemBytes);
    AT(CUlaunchConfig, hStream);
    AT(CUlaunchConfig, attrs);
    AT(CUlaunchConfig, numAttrs);
    SIZE(CUmemLocation);
    AT(CUmemLocation, id);
    SIZE(CUmemAllocationProp);
    AT(CUmemAllocationProp, requestedHandleTypes);
    AT(CUmemAllocationProp, location);
    AT(CUmemAllocationProp, allocFlags);
    AT(CUmemAllocationProp, allocFlags.usage);
    SIZE(CUmemAccessDesc);
    AT(CUmemAccessDesc, flags);
    SIZE(CUtensorMap);
    printf("SAME(_Alignof(CUtensorMap), %zu)\n", _Alignof(CUtensorMap));
    SIZE(cublasLtMatmulAlgo_t);
    SIZE(cublasLtMatmulHeuristicResult_t);
    AT(cublasLtMatmulHeuristicResult_t, workspaceSize);
    AT(cublasLtMatmulHeuristicResult_t, state);
    AT(cublasLtMatmulHeuristicResult_t, wavesCount);
    AT(cublasLtMatmulHeuristicResult_t, reserved);
    return 0;
}
