#include "cuda/dry.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "cuda/gpu.h"
#include "cuda/loader.h"

/* What dispatch asks about a card. The figures are those of a common card of each architecture. */
static const struct {
    const char *arch;
    int major, minor, multiprocessors, shared_per_block;
    int64_t l2_bytes;
} cards[] = {
    {"sm_75", 7, 5, 40, 65536, 4 << 20},        {"sm_80", 8, 0, 108, 166912, 40 << 20},
    {"sm_86", 8, 6, 84, 101376, 6 << 20},       {"sm_89", 8, 9, 128, 101376, 72 << 20},
    {"sm_90a", 9, 0, 132, 232448, 60 << 20},    {"sm_100a", 10, 0, 148, 232448, 126 << 20},
    {"sm_120", 12, 0, 170, 101376, 96 << 20},
};
#define CARDS (sizeof cards / sizeof *cards)

const char *const cup__architectures[] = {"sm_75",  "sm_80",   "sm_86",  "sm_89",
                                          "sm_90a", "sm_100a", "sm_120", NULL};

/* What stands before each piece of its memory, a list of those that are in use. */
#define ALIGNMENT 256
typedef struct block {
    struct block *previous, *next;
    size_t bytes;
    bool mapped;
} block;

/* Larger pieces are addresses without memory behind them: a plan may be of a larger card than this
 * machine is. */
#define MAPPED_LEAST ((size_t)1 << 20)

struct cup__dry {
    cup__kernel_request *requests;
    size_t count, capacity;
    cup__kernel kernel; /* stands for all */
    block *blocks;
    cup__memory_use use;
    void (*called)(void *call, void *user);
    void *called_user;
};

static block *new_block(size_t bytes)
{
    bool mapped = bytes >= MAPPED_LEAST;
    block *b = mapped ? mmap(NULL, ALIGNMENT + bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                      : cup__aligned(ALIGNMENT, ALIGNMENT + bytes);
    if (!b || b == MAP_FAILED)
        return NULL;
    *b = (block){.bytes = bytes, .mapped = mapped};
    return b;
}

static void free_block(block *b)
{
    if (b->mapped)
        munmap(b, ALIGNMENT + b->bytes);
    else
        cup__free(b);
}

static cup_status allocate(cup__device *device, size_t bytes, const char *tag, void **out)
{
    struct cup__dry *dry = cup__cuda_of(device)->dry;
    cup__memory_use *use = &dry->use;
    block *b = bytes < SIZE_MAX / 2 ? new_block(bytes) : NULL;
    *out = NULL;
    if (!b)
        return cup__fail(device->error, CUP_MEMORY, "out of host memory: %zu bytes for %s", bytes,
                         tag);
    b->next = dry->blocks;
    if (dry->blocks)
        dry->blocks->previous = b;
    dry->blocks = b;
    use->allocated += (int64_t)(bytes / ALIGNMENT + (bytes % ALIGNMENT || !bytes)) * ALIGNMENT;
    if (use->allocated > use->peak_allocated)
        use->peak_allocated = use->allocated;
    *out = (char *)b + ALIGNMENT;
    return CUP_OK;
}

static void release(cup__device *device, void *memory)
{
    if (!memory)
        return;
    struct cup__dry *dry = cup__cuda_of(device)->dry;
    block *b = (block *)(void *)((char *)memory - ALIGNMENT);
    *(b->previous ? &b->previous->next : &dry->blocks) = b->next;
    if (b->next)
        b->next->previous = b->previous;
    dry->use.allocated -=
        (int64_t)(b->bytes / ALIGNMENT + (b->bytes % ALIGNMENT || !b->bytes)) * ALIGNMENT;
    free_block(b);
}

static cup_status pin(cup__device *device, size_t bytes, const char *tag, void **out)
{
    block *b = bytes < SIZE_MAX / 2 ? new_block(bytes) : NULL;
    *out = b ? (char *)b + ALIGNMENT : NULL;
    if (!b)
        return cup__fail(device->error, CUP_MEMORY, "out of host memory: %zu bytes for %s", bytes,
                         tag);
    cup__cuda_of(device)->dry->use.host += (int64_t)bytes;
    return CUP_OK;
}

static void unpin(cup__device *device, void *memory, size_t bytes)
{
    cup__cuda_of(device)->dry->use.host -= (int64_t)bytes;
    free_block((block *)(void *)((char *)memory - ALIGNMENT));
}

bool cup__dry_holds(const cup__device *device, const void *memory)
{
    const block *b = cup__cuda_of((cup__device *)(uintptr_t)device)->dry->blocks;
    while (b && (const char *)b + ALIGNMENT != memory)
        b = b->next;
    return b != NULL;
}

static cup_status write(cup__device *device, void *to, const void *host, size_t bytes)
{
    (void)device, (void)to, (void)host, (void)bytes;
    return CUP_OK;
}

static cup_status read(cup__device *device, void *host, const void *from, size_t bytes)
{
    (void)device, (void)from;
    if (bytes)
        memset(host, 0, bytes);
    return CUP_OK;
}

static cup_status fill(cup__device *device, void *to, int byte, size_t bytes)
{
    (void)device, (void)to, (void)byte, (void)bytes;
    return CUP_OK;
}

static cup_status synchronize(cup__device *device)
{
    (void)device;
    return CUP_OK;
}

static void memory_use(cup__device *device, cup__memory_use *use)
{
    *use = cup__cuda_of(device)->dry->use;
}

void cup__dry_forget_peak(cup__device *device)
{
    cup__memory_use *use = &cup__cuda_of(device)->dry->use;
    use->peak_allocated = use->allocated;
}

static void limit(cup__device *device, int64_t bytes)
{
    (void)device, (void)bytes;
}

static int64_t trim(cup__device *device)
{
    (void)device;
    return 0;
}

static void forget(struct cup__dry *dry, size_t count)
{
    while (dry->count > count)
        cup__free((void *)(uintptr_t)dry->requests[--dry->count].knobs);
}

static void free_dry(cup__cuda *gpu)
{
    forget(gpu->dry, 0);
    cup__free(gpu->dry->requests);
    cup__free(gpu->dry);
    cup__free(gpu);
}

static void close_dry(cup__device *device)
{
    cup__cuda *gpu = cup__cuda_of(device);
    cup__kernels_close(gpu, false);
    free_dry(gpu);
}

static const cup__device_calls calls = {
    .close = close_dry,
    .allocate = allocate,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .write = write,
    .read = read,
    .copy = write,
    .fill = fill,
    .synchronize = synchronize,
    .memory_use = memory_use,
    .limit = limit,
    .trim = trim,
};

/* Implementations ask whether the driver has these calls. Where there is no driver, they get ones
 * that do nothing. */
static CUresult encode_nothing(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                               void *address, const uint64_t *sizes, const uint64_t *strides,
                               const uint32_t *box, const uint32_t *steps,
                               CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                               CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill_value)
{
    (void)map, (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box;
    (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill_value;
    return CUDA_SUCCESS;
}

static CUresult encode_no_image(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                void *address, const uint64_t *sizes, const uint64_t *strides,
                                const int *lower, const int *upper, uint32_t channels,
                                uint32_t pixels, const uint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill_value)
{
    (void)map, (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)lower;
    (void)upper, (void)channels, (void)pixels, (void)steps, (void)interleave, (void)swizzle;
    (void)promotion, (void)fill_value;
    return CUDA_SUCCESS;
}

static CUresult replace_nothing(CUtensorMap *map, void *address)
{
    (void)map, (void)address;
    return CUDA_SUCCESS;
}

static CUresult launch_nothing(const CUlaunchConfig *config, CUfunction function, void **arguments,
                               void **extra)
{
    (void)config, (void)function, (void)arguments, (void)extra;
    return CUDA_SUCCESS;
}

static CUresult count_no_clusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    (void)function, (void)config;
    *clusters = 0;
    return CUDA_SUCCESS;
}

static void stand_in_for_driver(void)
{
    if (!cup__driver.cuTensorMapEncodeTiled)
        cup__driver.cuTensorMapEncodeTiled = encode_nothing;
    if (!cup__driver.cuTensorMapEncodeIm2col)
        cup__driver.cuTensorMapEncodeIm2col = encode_no_image;
    if (!cup__driver.cuTensorMapReplaceAddress)
        cup__driver.cuTensorMapReplaceAddress = replace_nothing;
    if (!cup__driver.cuLaunchKernelEx)
        cup__driver.cuLaunchKernelEx = launch_nothing;
    if (!cup__driver.cuOccupancyMaxActiveClusters)
        cup__driver.cuOccupancyMaxActiveClusters = count_no_clusters;
}

cup_status cup__dry_open(cup__error *error, const char *arch, cup__device **out)
{
    size_t card = 0;
    while (card < CARDS && strcmp(cards[card].arch, arch))
        card++;
    if (card == CARDS)
        return cup__fail(error, CUP_ARGUMENT,
                         "architecture \"%.40s\" is unknown; use sm_75, sm_80, sm_86, sm_89, "
                         "sm_90a, sm_100a or sm_120",
                         arch);
    cup__cuda *gpu = cup__calloc(1, sizeof *gpu);
    struct cup__dry *dry = cup__calloc(1, sizeof *dry);
    if (!gpu || !dry) {
        cup__free(gpu);
        cup__free(dry);
        return cup__fail(error, CUP_MEMORY, "out of host memory for a dry GPU");
    }
    dry->kernel = (cup__kernel){.name = "dry", .threads_most = 1024, .argument_count = -1,
                                .shared_allowed = INT_MAX};
    stand_in_for_driver();
    gpu->dry = dry;
    gpu->clusters = cards[card].major >= 9;
    gpu->device = (cup__device){.calls = &calls, .error = error, .is_cuda = true};
    gpu->facts = (cup__gpu_facts){.major = cards[card].major,
                                  .minor = cards[card].minor,
                                  .multiprocessors = cards[card].multiprocessors,
                                  .shared_per_block = cards[card].shared_per_block,
                                  .l2_bytes = cards[card].l2_bytes,
                                  .memory_bytes = (int64_t)64 << 30};
    snprintf(gpu->facts.arch, sizeof gpu->facts.arch, "%s", arch);
    snprintf(gpu->facts.name, sizeof gpu->facts.name, "dry %s", arch);
    snprintf(gpu->device.text, sizeof gpu->device.text, "dry %s", arch);
    *out = &gpu->device;
    return CUP_OK;
}

void cup__dry_like(cup__cuda *gpu, const cup__gpu_facts *facts)
{
    gpu->facts = *facts;
}

bool cup__device_is_dry(const cup__device *device)
{
    return device->calls == &calls;
}

void cup__dry_watch(cup__device *device, void (*called)(void *call, void *user), void *user)
{
    struct cup__dry *dry = cup__cuda_of(device)->dry;
    dry->called = called;
    dry->called_user = user;
}

void cup__dry_watch_pause(cup__device *device, void *call, void (**called)(void *, void *))
{
    struct cup__dry *dry = cup__cuda_of(device)->dry;
    *called = dry->called;
    if (dry->called)
        dry->called(call, dry->called_user);
    dry->called = NULL;
}

void cup__dry_watch_on(cup__device *device, void (*called)(void *, void *))
{
    cup__cuda_of(device)->dry->called = called;
}

const cup__kernel_request *cup__dry_requests(const cup__cuda *gpu, int *count)
{
    *count = (int)gpu->dry->count;
    return gpu->dry->requests;
}

void cup__dry_forget(cup__cuda *gpu, int count)
{
    if ((size_t)count == gpu->dry->count)
        return;
    forget(gpu->dry, (size_t)count);
    cup__kernels_close(gpu, false); /* it would not ask again for what it remembers */
}

static bool same(const cup__kernel_request *a, const cup__kernel_request *b)
{
    if (a->knob_count != b->knob_count || strcmp(a->file, b->file) || a->text != b->text)
        return false;
    for (int i = 0; i < a->knob_count; i++)
        if (strcmp(a->knobs[i].name, b->knobs[i].name) || a->knobs[i].value != b->knobs[i].value)
            return false;
    return true;
}

cup__kernel *cup__dry_kernel(cup__cuda *gpu, const cup__kernel_request *request)
{
    struct cup__dry *dry = gpu->dry;
    for (size_t i = 0; i < dry->count; i++)
        if (same(&dry->requests[i], request))
            return &dry->kernel;
    cup__knob *copy = cup__calloc((size_t)request->knob_count, sizeof *copy);
    if (!copy ||
        !cup__grow(&dry->requests, &dry->capacity, dry->count, sizeof *dry->requests)) {
        cup__free(copy);
        cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a list of kernels");
        return NULL;
    }
    if (request->knob_count)
        memcpy(copy, request->knobs, (size_t)request->knob_count * sizeof *copy);
    dry->requests[dry->count] = *request;
    dry->requests[dry->count++].knobs = copy;
    return &dry->kernel;
}
