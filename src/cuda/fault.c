/* Failed driver calls as sentences. */
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"

const char *cup__cuda_result_text(CUresult result, char out[CUP__RESULT_TEXT])
{
    const char *name = NULL, *words = NULL;
    cup__driver.cuGetErrorName(result, &name);
    cup__driver.cuGetErrorString(result, &words);
    if (name)
        snprintf(out, CUP__RESULT_TEXT, "%s (%s)", name, words ? words : "no description");
    else
        snprintf(out, CUP__RESULT_TEXT, "CUDA error %d", (int)result);
    return out;
}

/* After these the driver refuses all further work of the process on the GPU. */
static bool is_final(CUresult result)
{
    switch ((int)result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

void cup__cuda_note(cup__cuda *gpu, const char *what)
{
    uint64_t at = gpu->launches++ % CUP__RECENT;
    gpu->recent[at].what = what;
    gpu->recent[at].op = gpu->op;
}

/* The last launches, newest first: "gelu_fwd for gelu, add_fwd for add". */
static void recent_text(const cup__cuda *gpu, char *out, size_t size)
{
    uint64_t most = gpu->launches < CUP__RECENT ? gpu->launches : CUP__RECENT;
    size_t used = 0;
    out[0] = 0;
    for (uint64_t i = 1; i <= most && used < size; i++) {
        uint64_t at = (gpu->launches - i) % CUP__RECENT;
        const char *op = gpu->recent[at].op;
        used += (size_t)snprintf(out + used, size - used, "%s%s%s%s", i > 1 ? ", " : "",
                                 gpu->recent[at].what, op ? " for " : "", op ? op : "");
    }
}

static cup_status fail_lost(cup__cuda *gpu, CUresult result, const char *doing)
{
    char words[CUP__RESULT_TEXT], recent[512];
    cup__cuda_result_text(result, words);
    recent_text(gpu, recent, sizeof recent);
    snprintf(gpu->lost_text, sizeof gpu->lost_text,
             "the GPU stopped with %s, noticed while %s; the last launches, newest first: %s. This "
             "process cannot use the GPU any more: start it again, with CUP_LOG=time to learn "
             "which launch it is",
             words, doing, recent[0] ? recent : "none");
    gpu->lost = true;
    return cup__fail(gpu->device.error, CUP_DRIVER, "%s", gpu->lost_text);
}

bool cup__device_is_lost(cup__device *device)
{
    return device->is_cuda && cup__cuda_of(device)->lost;
}

cup_status cup__cuda_check(cup__cuda *gpu, CUresult result, const char *doing)
{
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    if (is_final(result))
        return fail_lost(gpu, result, doing);
    char words[CUP__RESULT_TEXT];
    cup__cuda_result_text(result, words);
    cup_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? CUP_MEMORY : CUP_DRIVER;
    return cup__fail(gpu->device.error, status, "%s failed: %s", doing, words);
}
