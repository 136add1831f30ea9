/* Memory that is not the GPU's own, or that a context did not get itself. */
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"

/* Of one address: NULL when ops can use it. */
static const char *refusal(const cup__cuda *gpu, CUdeviceptr address, char why[CUP__REACH_TEXT])
{
    unsigned type = 0, managed = 0;
    int index = gpu->facts.index;
    if (cup__driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
        CUDA_SUCCESS)
        return "it is, or ends in, memory that CUDA does not know; copy memory of the host with "
               "cup_tensor_from";
    if (cup__driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
            CUDA_SUCCESS &&
        managed)
        return NULL;
    if (type != CU_MEMORYTYPE_DEVICE)
        return "it is memory of the host, which a GPU's ops are too slow on; copy it with "
               "cup_tensor_from";
    cup__driver.cuPointerGetAttribute(&index, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if (index == gpu->facts.index)
        return NULL;
    snprintf(why, CUP__REACH_TEXT,
             "it is memory of cuda:%d, and the context is on cuda:%d; wrap it in a context there "
             "and copy it with cup_tensor_to",
             index, gpu->facts.index);
    return why;
}

cup_status cup__cuda_reach(cup__device *device, const void *memory, size_t bytes,
                           char why[CUP__REACH_TEXT])
{
    cup__cuda *gpu = cup__cuda_of(device);
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)memory;
    snprintf(why, CUP__REACH_TEXT, "the GPU cannot be asked about it");
    CUP_TRY(cup__cuda_enter(gpu));
    const char *refused = refusal(gpu, first, why);
    if (!refused)
        refused = refusal(gpu, first + bytes - 1, why);
    if (refused && refused != why)
        snprintf(why, CUP__REACH_TEXT, "%s", refused);
    return refused ? CUP_ARGUMENT : CUP_OK;
}

void cup__cuda_part(cup__device *device, void (*release)(void *user), void *user)
{
    cup__cuda *gpu = cup__cuda_of(device);
    if (gpu->capturing && cup__graph_part(gpu, release, user) == CUP_OK)
        return;
    /* What fails here fails the next call as well; the owner is told in any case. */
    if (!gpu->capturing && cup__cuda_enter_to_free(gpu))
        cup__driver.cuStreamSynchronize(gpu->stream);
    release(user);
}

/* A capture does not allow waiting; the graph then holds what is released. */
void cup__cuda_idle(cup__device *device)
{
    cup__cuda *gpu = cup__cuda_of(device);
    if (!gpu->capturing && cup__cuda_enter_to_free(gpu))
        cup__driver.cuCtxSynchronize();
}

cup_status cup__cuda_pin(cup__device *device, size_t bytes, const char *tag, void **out)
{
    char doing[120];
    cup__cuda *gpu = cup__cuda_of(device);
    snprintf(doing, sizeof doing, "getting %zu bytes of pinned memory of the host for %s", bytes,
             tag);
    CUP_TRY(cup__cuda_enter(gpu));
    CUP_TRY(cup__cuda_check(
        gpu, cup__driver.cuMemHostAlloc(out, bytes, CU_MEMHOSTALLOC_DEVICEMAP), doing));
    gpu->pinned += (int64_t)bytes;
    memset(*out, 0, bytes);
    return CUP_OK;
}

void cup__cuda_unpin(cup__device *device, void *memory, size_t bytes)
{
    cup__cuda *gpu = cup__cuda_of(device);
    gpu->pinned -= (int64_t)bytes;
    if (!cup__cuda_enter_to_free(gpu))
        return;
    cup__driver.cuStreamSynchronize(gpu->stream);
    cup__driver.cuMemFreeHost(memory);
}
