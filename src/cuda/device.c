/* Opening and closing a GPU, and its table of calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"
#include "cuda/ferry.h"
#include "cuda/gpu.h"

#define LEAST_DRIVER 11040 /* CUDA 11.4, the first with all that is needed for captured graphs */
#define LEAST_CAPABILITY 75

unsigned cup__forks;

static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static _Atomic bool started;            /* cuInit has succeeded */
static _Atomic unsigned started_forks; /* the value of cup__forks then */

static void count_fork(void)
{
    cup__forks++;
}

static void add_fork_handler(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static cup_status fail_forked(cup__error *error)
{
    return cup__fail(error, CUP_STATE,
                     "CUDA was started before this process was forked, and cannot be used in a "
                     "forked child: make the context in the child only, or start the child with "
                     "exec");
}

/* Loads and starts the driver. */
static cup_status start(cup__error *error)
{
    pthread_once(&watch_forks, add_fork_handler);
    if (atomic_load(&started) && atomic_load(&started_forks) != cup__forks)
        return fail_forked(error);
    char why[CUP__ERROR_TEXT];
    if (!cup__library_open(CUP__LIBCUDA)) {
        const cup__library_report *report = cup__library_report_of(CUP__LIBCUDA);
        cup__cuda_explain(CUDA_ERROR_NO_DEVICE, why, sizeof why);
        bool named = *cup__env_get(CUP__ENV_LIBCUDA);
        return cup__fail(error, CUP_NO_DEVICE, "no CUDA driver: %s%s%s", why, named ? "; " : "",
                         named ? report->reason : "");
    }
    int version = cup__library_report_of(CUP__LIBCUDA)->version;
    if (version < LEAST_DRIVER)
        return cup__fail(error, CUP_NO_DEVICE,
                         "the driver is for CUDA %d.%d, and %d.%d is needed: update it",
                         version / 1000, version % 1000 / 10, LEAST_DRIVER / 1000,
                         LEAST_DRIVER % 1000 / 10);
    CUresult result = cup__driver.cuInit(0);
    if (result != CUDA_SUCCESS) {
        cup__cuda_explain(result, why, sizeof why);
        return cup__fail(error, CUP_NO_DEVICE, "CUDA does not start: %s", why);
    }
    if (!atomic_exchange(&started, true))
        atomic_store(&started_forks, cup__forks);
    return CUP_OK;
}

static cup_status count_devices(cup__error *error, int *count)
{
    char why[CUP__ERROR_TEXT];
    *count = 0;
    CUP_TRY(start(error));
    CUresult result = cup__driver.cuDeviceGetCount(count);
    if (result == CUDA_SUCCESS && *count > 0)
        return CUP_OK;
    cup__cuda_explain(result == CUDA_SUCCESS ? CUDA_ERROR_NO_DEVICE : result, why, sizeof why);
    return cup__fail(error, CUP_NO_DEVICE, "CUDA finds no GPU: %s", why);
}

int cup__cuda_count(char why[512])
{
    cup__error error = {0};
    int count;
    count_devices(&error, &count);
    snprintf(why, 512, "%.511s", error.text);
    return count;
}

cup_status cup__cuda_enter(cup__cuda *gpu)
{
    if (gpu->dry)
        return CUP_OK;
    if (gpu->lost)
        return cup__fail(gpu->device.error, CUP_DRIVER, "%s", gpu->lost_text);
    if (gpu->forks != cup__forks)
        return fail_forked(gpu->device.error);
    CUcontext current;
    if (cup__driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == gpu->context)
        return CUP_OK;
    return cup__cuda_check(gpu, cup__driver.cuCtxSetCurrent(gpu->context),
                           "making the GPU current");
}

bool cup__cuda_enter_to_free(cup__cuda *gpu)
{
    if (!gpu->context || gpu->forks != cup__forks)
        return false;
    cup__driver.cuCtxSetCurrent(gpu->context);
    return true;
}

static cup_status read_facts(cup__cuda *gpu)
{
    cup__gpu_facts *facts = &gpu->facts;
    int l2 = 0, mapping = 0, clusters = 0;
    const struct {
        CUdevice_attribute attribute;
        int *to;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &facts->major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &facts->minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &facts->clock_khz},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &facts->memory_clock_khz},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &facts->memory_bus_bits},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &facts->shared_per_block},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &mapping},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        CUP_TRY(cup__cuda_check(gpu,
                                cup__driver.cuDeviceGetAttribute(
                                    wanted[i].to, wanted[i].attribute, gpu->handle),
                                "asking for the GPU's properties"));
    /* Drivers before 11.8 do not know of clusters. */
    if (cup__driver.cuDeviceGetAttribute(&clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH,
                                         gpu->handle) != CUDA_SUCCESS)
        clusters = 0;
    size_t bytes;
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuDeviceTotalMem(&bytes, gpu->handle),
                            "asking for the GPU's memory"));
    CUP_TRY(cup__cuda_check(
        gpu, cup__driver.cuDeviceGetName(facts->name, sizeof facts->name, gpu->handle),
        "asking for the GPU's name"));
    facts->memory_bytes = (int64_t)bytes;
    facts->l2_bytes = l2;
    gpu->virtual_memory = mapping && strcmp(cup__env_get(CUP__ENV_MAPPING), "off") != 0 &&
                          cup__driver.cuMemAddressReserve && cup__driver.cuMemCreate &&
                          cup__driver.cuMemMap && cup__driver.cuMemSetAccess;
    gpu->clusters = clusters && cup__driver.cuLaunchKernelEx;
    /* The cards with instructions of their own that no later card keeps. */
    bool own = facts->major == 9 || facts->major == 10;
    snprintf(facts->arch, sizeof facts->arch, "sm_%d%d%s", facts->major, facts->minor,
             own ? "a" : "");
    return CUP_OK;
}

static cup_status check_facts(cup__cuda *gpu)
{
    const cup__gpu_facts *facts = &gpu->facts;
    if (facts->major * 10 + facts->minor >= LEAST_CAPABILITY)
        return CUP_OK;
    return cup__fail(gpu->device.error, CUP_NO_DEVICE,
                     "cuda:%d, %s, has compute capability %d.%d, and %d.%d is the least that is "
                     "supported; use cpu or another GPU",
                     facts->index, facts->name, facts->major, facts->minor, LEAST_CAPABILITY / 10,
                     LEAST_CAPABILITY % 10);
}

static cup_status open_context(cup__cuda *gpu)
{
    CUresult result = cup__driver.cuDevicePrimaryCtxRetain(&gpu->context, gpu->handle);
    if (result == CUDA_SUCCESS)
        return cup__cuda_enter(gpu);
    char why[CUP__ERROR_TEXT];
    gpu->context = NULL;
    cup__cuda_explain(result, why, sizeof why);
    return cup__fail(gpu->device.error,
                     result == CUDA_ERROR_OUT_OF_MEMORY ? CUP_MEMORY : CUP_NO_DEVICE,
                     "cuda:%d, %s, cannot be opened: %s", gpu->facts.index, gpu->facts.name, why);
}

static cup_status open_parts(cup__cuda *gpu, int64_t memory_limit)
{
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuDeviceGet(&gpu->handle, gpu->facts.index),
                            "finding the GPU"));
    CUP_TRY(read_facts(gpu));
    CUP_TRY(check_facts(gpu));
    CUP_TRY(open_context(gpu));
    /* Non-blocking: work of others on the default stream is none of ours. */
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuStreamCreate(&gpu->own_stream,
                                                       CU_STREAM_NON_BLOCKING),
                            "making a stream"));
    gpu->stream = gpu->own_stream;
    CUP_TRY(cup__pool_open(gpu, memory_limit, &gpu->pool));
    snprintf(gpu->device.text, sizeof gpu->device.text, "cuda:%d, %s, %.1f GiB", gpu->facts.index,
             gpu->facts.name, (double)gpu->facts.memory_bytes / (1 << 30));
    return CUP_OK;
}

static void close_gpu(cup__device *device)
{
    cup__cuda *gpu = cup__cuda_of(device);
    cup__error ignored = {0};
    gpu->device.error = &ignored;
    bool usable = cup__cuda_enter_to_free(gpu);
    if (usable && gpu->stream && !gpu->capturing)
        cup__driver.cuStreamSynchronize(gpu->stream);
    cup__graphs_close(gpu, usable);
    cup__kernels_close(gpu, usable);
    cup__staging_close(gpu, usable);
    cup__ferry_close(gpu, usable);
    if (gpu->pool)
        cup__pool_close(gpu->pool, usable);
    if (usable) {
        if (gpu->own_stream)
            cup__driver.cuStreamDestroy(gpu->own_stream);
        cup__driver.cuDevicePrimaryCtxRelease(gpu->handle);
    }
    cup__free(gpu);
}

static cup_status allocate(cup__device *device, size_t bytes, const char *tag, void **out)
{
    return cup__pool_allocate(cup__cuda_of(device)->pool, bytes, tag, out);
}

static void release(cup__device *device, void *memory)
{
    cup__pool_release(cup__cuda_of(device)->pool, memory);
}

static cup_status copy(cup__device *device, void *to, const void *from, size_t bytes)
{
    cup__cuda *gpu = cup__cuda_of(device);
    if (!bytes)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    return cup__cuda_check(gpu,
                           cup__driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to,
                                                         (CUdeviceptr)(uintptr_t)from, bytes,
                                                         gpu->stream),
                           "copying on the GPU");
}

static cup_status fill(cup__device *device, void *to, int byte, size_t bytes)
{
    cup__cuda *gpu = cup__cuda_of(device);
    if (!bytes)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    return cup__cuda_check(gpu,
                           cup__driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)to,
                                                       (unsigned char)byte, bytes, gpu->stream),
                           "filling memory");
}

static cup_status synchronize(cup__device *device)
{
    cup__cuda *gpu = cup__cuda_of(device);
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__fail(device->error, CUP_STATE,
                         "waiting for the GPU cannot be captured in a graph; wait outside of it");
    return cup__cuda_check(gpu, cup__driver.cuStreamSynchronize(gpu->stream),
                           "waiting for the GPU");
}

static void memory_use(cup__device *device, cup__memory_use *use)
{
    cup__pool_use(cup__cuda_of(device)->pool, use);
    use->host = cup__cuda_of(device)->pinned;
}

static void limit(cup__device *device, int64_t bytes)
{
    cup__pool_limit(cup__cuda_of(device)->pool, bytes);
}

static int64_t trim(cup__device *device)
{
    return cup__pool_trim(cup__cuda_of(device)->pool);
}

static const cup__device_calls calls = {
    .close = close_gpu,
    .allocate = allocate,
    .release = release,
    .pin = cup__cuda_pin,
    .unpin = cup__cuda_unpin,
    .write = cup__staging_write,
    .read = cup__staging_read,
    .copy = copy,
    .fill = fill,
    .synchronize = synchronize,
    .reach = cup__cuda_reach,
    .part = cup__cuda_part,
    .idle = cup__cuda_idle,
    .memory_use = memory_use,
    .limit = limit,
    .trim = trim,
};

static cup_status fail_index(cup__error *error, int index, int count)
{
    if (count == 1)
        return cup__fail(error, CUP_NO_DEVICE,
                         "cuda:%d is not there: this machine shows one GPU, cuda:0", index);
    return cup__fail(error, CUP_NO_DEVICE,
                     "cuda:%d is not there: this machine shows %d GPUs, cuda:0 to cuda:%d", index,
                     count, count - 1);
}

cup_status cup__cuda_open(cup__error *error, int index, int64_t memory_limit, cup__device **out)
{
    int count;
    *out = NULL;
    CUP_TRY(count_devices(error, &count));
    if (index < 0 || index >= count)
        return fail_index(error, index, count);
    cup__cuda *gpu = cup__calloc(1, sizeof *gpu);
    if (!gpu)
        return cup__fail(error, CUP_MEMORY, "out of host memory while opening cuda:%d", index);
    gpu->device.calls = &calls;
    gpu->device.error = error;
    gpu->device.is_cuda = true;
    gpu->facts.index = index;
    gpu->forks = cup__forks;
    cup_status status = open_parts(gpu, memory_limit);
    if (status != CUP_OK) {
        close_gpu(&gpu->device);
        return status;
    }
    *out = &gpu->device;
    return CUP_OK;
}

cup_status cup__cuda_look(cup__error *error, int index, cup__gpu_facts *out)
{
    int count;
    CUP_TRY(count_devices(error, &count));
    if (index < 0 || index >= count)
        return fail_index(error, index, count);
    cup__cuda gpu = {.device.error = error, .facts.index = index};
    CUP_TRY(cup__cuda_check(&gpu, cup__driver.cuDeviceGet(&gpu.handle, index), "finding the GPU"));
    CUP_TRY(read_facts(&gpu));
    *out = gpu.facts;
    return check_facts(&gpu);
}

cup__cuda *cup__cuda_of(cup__device *device)
{
    return (cup__cuda *)device;
}

const cup__gpu_facts *cup__cuda_facts(const cup__cuda *gpu)
{
    return &gpu->facts;
}

CUstream cup__cuda_stream(const cup__cuda *gpu)
{
    return gpu->stream;
}

CUstream cup__cuda_stream_shown(cup__cuda *gpu)
{
    gpu->shown = true;
    return gpu->stream;
}

void cup__cuda_op(cup__cuda *gpu, const char *op)
{
    gpu->op = op;
}
