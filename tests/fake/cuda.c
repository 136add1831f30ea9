/* Devices, contexts, memory, and the bookkeeping of the fake driver. */
#define FAKE_INSIDE
#include "fake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define NEED(result, name, exported, arguments) EXPORT result name arguments __asm__(exported);
#define MAY NEED
#include "cuda/driver.def"
#undef NEED
#undef MAY

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *name;
    long calls;
} counts[128];
static char fail_name[64];
static long fail_at;
static CUresult fail_result;
static long live[FAKE_KINDS];
static size_t memory_used;

EXPORT fake_fail_function fake_cuda_fail;
EXPORT fake_calls_function fake_cuda_calls;
EXPORT fake_live_function fake_cuda_live;

long fake_setting(const char *name, long usual)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : usual;
}

static void count_call(const char *name)
{
    for (int i = 0; i < 128; i++) {
        if (counts[i].name && strcmp(counts[i].name, name))
            continue;
        counts[i].name = name;
        counts[i].calls++;
        return;
    }
}

CUresult fake_enter(const char *name)
{
    pthread_mutex_lock(&lock);
    count_call(name);
    bool ours = fail_at > 0 && (!fail_name[0] || !strcmp(fail_name, name));
    bool fails = ours && --fail_at == 0;
    pthread_mutex_unlock(&lock);
    return fails ? fail_result : CUDA_SUCCESS;
}

void fake_leave(const char *name)
{
    pthread_mutex_lock(&lock);
    count_call(name);
    pthread_mutex_unlock(&lock);
}

void fake_count(fake_kind kind, long change)
{
    pthread_mutex_lock(&lock);
    live[kind] += change;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_fail(const char *name, long n, CUresult result)
{
    pthread_mutex_lock(&lock);
    snprintf(fail_name, sizeof fail_name, "%s", name ? name : "");
    fail_at = n;
    fail_result = result;
    pthread_mutex_unlock(&lock);
}

long fake_cuda_calls(const char *name)
{
    long calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 128 && counts[i].name; i++)
        if (!name || !strcmp(counts[i].name, name))
            calls += counts[i].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

long fake_cuda_live(char *words)
{
    static const char *const names[FAKE_KINDS] = {"contexts", "streams", "events", "allocations",
                                                  "pinned",   "ranges",  "mapped", "handles",
                                                  "modules",  "graphs",  "runnable graphs"};
    long all = 0;
    size_t used = 0;
    words[0] = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FAKE_KINDS; i++) {
        all += live[i];
        if (live[i])
            used += (size_t)snprintf(words + used, 512 - used, "%ld %s ", live[i], names[i]);
    }
    pthread_mutex_unlock(&lock);
    return all;
}

CUresult cuInit(unsigned int flags)
{
    ENTER;
    return flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)fake_setting("FAKE_CUDA_INIT", 0);
}

CUresult cuDriverGetVersion(int *version)
{
    *version = (int)fake_setting("FAKE_CUDA_DRIVER", 13000);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_OUT_OF_MEMORY      ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : result == CUDA_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
                                                   : "CUDA_ERROR_OF_THE_FAKE";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    (void)result;
    *text = "words of the fake driver";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER;
    *count = (int)fake_setting("FAKE_CUDA_DEVICES", 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER;
    *device = ordinal;
    return ordinal < fake_setting("FAKE_CUDA_DEVICES", 1) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER;
    (void)device;
    snprintf(name, (size_t)size, "Fake GPU");
    return CUDA_SUCCESS;
}

static size_t memory_bytes(void)
{
    return (size_t)fake_setting("FAKE_CUDA_MEMORY", 1l << 30);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    ENTER;
    (void)device;
    *bytes = memory_bytes();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER;
    (void)device;
    int capability = (int)fake_setting("FAKE_CUDA_CAPABILITY", 90);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = capability / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = capability % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = 232448;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = (int)fake_setting("FAKE_CUDA_VMM", 1);
        break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        *value = capability >= 90;
        break;
    default:
        *value = 1;
    }
    return CUDA_SUCCESS;
}

/* Contexts: one a device; handle i + 1 for device i. */

/* Not _Thread_local: the leak checker of gcc 12 may crash on such variables of loaded libraries. */
static pthread_key_t current_key;

__attribute__((constructor)) static void make_key(void)
{
    pthread_key_create(&current_key, NULL);
}

static CUcontext current(void)
{
    return pthread_getspecific(current_key);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER;
    *context = (CUcontext)(uintptr_t)(device + 1);
    fake_count(FAKE_CONTEXT, 1);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    LEAVE;
    (void)device;
    fake_count(FAKE_CONTEXT, -1);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER;
    pthread_setspecific(current_key, context);
    return CUDA_SUCCESS;
}

/* Memory. Each allocation has a head in front that holds its size. */

#define HEAD 256

static CUresult take(size_t bytes)
{
    size_t others = (size_t)fake_setting("FAKE_CUDA_OTHERS", 0);
    pthread_mutex_lock(&lock);
    bool fits = bytes <= memory_bytes() - others - memory_used;
    if (fits)
        memory_used += bytes;
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give(size_t bytes)
{
    pthread_mutex_lock(&lock);
    memory_used -= bytes;
    pthread_mutex_unlock(&lock);
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER;
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *total = memory_bytes();
    *free_bytes = *total - memory_used - (size_t)fake_setting("FAKE_CUDA_OTHERS", 0);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    ENTER;
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = take(bytes);
    if (result != CUDA_SUCCESS)
        return result;
    char *block = aligned_alloc(HEAD, HEAD + (bytes + HEAD - 1) / HEAD * HEAD);
    memcpy(block, &bytes, sizeof bytes);
    *memory = (CUdeviceptr)(uintptr_t)(block + HEAD);
    fake_range_add(block + HEAD, bytes, CU_MEMORYTYPE_DEVICE);
    fake_count(FAKE_MEMORY, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr memory)
{
    LEAVE;
    fake_finish();
    char *block = (char *)(uintptr_t)memory - HEAD;
    fake_range_remove(block + HEAD);
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    give(bytes);
    free(block);
    fake_count(FAKE_MEMORY, -1);
    return CUDA_SUCCESS;
}

/* The memory of another process is some of this one's, of as many bytes, that nobody reads. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr memory)
{
    ENTER;
    memcpy(handle->reserved, (char *)(uintptr_t)memory - HEAD, sizeof(size_t));
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *memory, CUipcMemHandle handle, unsigned int flags)
{
    ENTER;
    size_t bytes;
    memcpy(&bytes, handle.reserved, sizeof bytes);
    return flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? cuMemAlloc(memory, bytes)
                                                       : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr memory)
{
    return cuMemFree(memory);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    ENTER;
    (void)flags;
    *memory = malloc(bytes);
    fake_range_add(*memory, bytes, CU_MEMORYTYPE_HOST);
    fake_count(FAKE_PINNED, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *memory)
{
    LEAVE;
    fake_finish();
    fake_range_remove(memory);
    free(memory);
    fake_count(FAKE_PINNED, -1);
    return CUDA_SUCCESS;
}

#define PAGE ((size_t)2 << 20)

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *kind,
                                       CUmemAllocationGranularity_flags option)
{
    ENTER;
    (void)kind, (void)option;
    *bytes = PAGE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags)
{
    ENTER;
    (void)alignment, (void)wish, (void)flags;
    if (bytes % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)fake_setting("FAKE_CUDA_ADDRESSES", 1l << 50))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (CUdeviceptr)(uintptr_t)range;
    if (range == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_count(FAKE_RESERVED, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    LEAVE;
    munmap((void *)(uintptr_t)address, bytes);
    fake_count(FAKE_RESERVED, -1);
    return CUDA_SUCCESS;
}

/* What a handle points to. Memory that was never mapped comes back when its handle is released,
 * other memory when it is unmapped. */
typedef struct allocation {
    size_t bytes;
    bool mapped;
} allocation;

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *kind, unsigned long long flags)
{
    ENTER;
    (void)flags;
    if (bytes % PAGE || kind->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    allocation *made = malloc(sizeof *made);
    if (!made || take(bytes) != CUDA_SUCCESS) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (allocation){.bytes = bytes};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    fake_count(FAKE_HANDLE, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    LEAVE;
    allocation *released = (allocation *)(uintptr_t)handle;
    if (!released->mapped)
        give(released->bytes);
    free(released);
    fake_count(FAKE_HANDLE, -1);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER;
    (void)flags;
    allocation *mapped = (allocation *)(uintptr_t)handle;
    if (offset || mapped->bytes != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    mapped->mapped = true;
    fake_range_add((void *)(uintptr_t)address, bytes, CU_MEMORYTYPE_DEVICE);
    fake_count(FAKE_MAPPED, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    LEAVE;
    fake_finish();
    mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fake_range_remove((void *)(uintptr_t)address);
    give(bytes);
    fake_count(FAKE_MAPPED, -1);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    ENTER;
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE);
    return CUDA_SUCCESS;
}
