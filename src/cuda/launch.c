/* Launching a kernel, checked against what the driver knows of it. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cuda/gpu.h"

#define GRID_X_MOST 2147483647
#define GRID_YZ_MOST 65535

static cup_status fail(cup__cuda *gpu, const cup__kernel *kernel, cup_status status,
                       const char *words)
{
    return cup__fail(gpu->device.error, status, "%s%s%s: %s", gpu->op ? gpu->op : "",
                     gpu->op ? ": " : "", kernel->name, words);
}

static cup_status fail_grid(cup__cuda *gpu, const cup__kernel *kernel, const cup__grid *grid)
{
    char words[400];
    snprintf(words, sizeof words,
             "a grid of %lld x %lld x %lld blocks of %d threads cannot be launched: at most %d x "
             "%d x %d blocks, and %d threads for this kernel of %d registers",
             (long long)grid->x, (long long)grid->y, (long long)grid->z, grid->threads,
             GRID_X_MOST, GRID_YZ_MOST, GRID_YZ_MOST, kernel->threads_most, kernel->registers);
    return fail(gpu, kernel, CUP_INTERNAL, words);
}

/* Counts and sizes against the kernel's own parameters. */
static cup_status check_arguments(cup__cuda *gpu, const cup__kernel *kernel,
                                  const cup__argument *arguments, int count)
{
    char words[200];
    if (count > CUP__MOST_ARGUMENTS || (kernel->argument_count >= 0 &&
                                        count != kernel->argument_count)) {
        snprintf(words, sizeof words, "launched with %d arguments, it takes %d", count,
                 kernel->argument_count >= 0 ? kernel->argument_count : CUP__MOST_ARGUMENTS);
        return fail(gpu, kernel, CUP_INTERNAL, words);
    }
    for (int i = 0; i < kernel->argument_count; i++)
        if (arguments[i].size != kernel->argument_sizes[i]) {
            snprintf(words, sizeof words, "argument %d has %zu bytes, the kernel's has %zu", i + 1,
                     arguments[i].size, kernel->argument_sizes[i]);
            return fail(gpu, kernel, CUP_INTERNAL, words);
        }
    return CUP_OK;
}

/* More than 48 KiB of dynamic shared memory must be asked for, once. */
static cup_status allow_shared(cup__cuda *gpu, cup__kernel *kernel, int bytes)
{
    if (bytes < 0 || bytes > gpu->facts.shared_per_block - kernel->static_shared) {
        char words[200];
        snprintf(words, sizeof words,
                 "%d bytes of dynamic shared memory asked for, a block has %d on this card", bytes,
                 gpu->facts.shared_per_block - kernel->static_shared);
        return fail(gpu, kernel, CUP_INTERNAL, words);
    }
    CUP_TRY(cup__cuda_check(
        gpu,
        cup__driver.cuFuncSetAttribute(kernel->function,
                                       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes),
        "asking for shared memory"));
    kernel->shared_allowed = bytes;
    return CUP_OK;
}

/* Clusters of more than 8 blocks, which not every card has, must be asked for. */
static cup_status allow_cluster(cup__cuda *gpu, cup__kernel *kernel, int blocks)
{
    if (!gpu->clusters)
        return fail(gpu, kernel, CUP_UNSUPPORTED, "this card or its driver has no clusters");
    if (blocks <= 8 || kernel->wide_clusters || gpu->dry)
        return CUP_OK;
    CUP_TRY(cup__cuda_check(
        gpu,
        cup__driver.cuFuncSetAttribute(kernel->function,
                                       CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
        "asking for large clusters"));
    kernel->wide_clusters = true;
    return CUP_OK;
}

static CUresult launch_extended(const cup__cuda *gpu, const cup__kernel *kernel,
                                const cup__grid *grid, void **values)
{
    CUlaunchAttribute attributes[3]; /* of which those that are counted are filled in */
    CUlaunchConfig config = {.gridDimX = (unsigned)grid->x,
                             .gridDimY = (unsigned)grid->y,
                             .gridDimZ = (unsigned)grid->z,
                             .blockDimX = (unsigned)grid->threads,
                             .blockDimY = (unsigned)grid->threads_y,
                             .blockDimZ = (unsigned)grid->threads_z,
                             .sharedMemBytes = (unsigned)grid->shared,
                             .hStream = gpu->stream,
                             .attrs = attributes};
    if (grid->cluster > 1) {
        CUlaunchAttribute *cluster = &attributes[config.numAttrs++];
        cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        cluster->value.clusterDim.x = (unsigned)grid->cluster;
        cluster->value.clusterDim.y = cluster->value.clusterDim.z = 1;
    }
    if (grid->dependent) {
        CUlaunchAttribute *dependent = &attributes[config.numAttrs++];
        dependent->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        dependent->value.programmaticStreamSerializationAllowed = 1;
    }
    if (grid->together) {
        CUlaunchAttribute *together = &attributes[config.numAttrs++];
        together->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        together->value.cooperative = 1;
    }
    return cup__driver.cuLaunchKernelEx(&config, kernel->function, values, NULL);
}

static CUresult launch_plain(const cup__cuda *gpu, const cup__kernel *kernel,
                             const cup__grid *grid, void **values)
{
    return cup__driver.cuLaunchKernel(kernel->function, (unsigned)grid->x, (unsigned)grid->y,
                                      (unsigned)grid->z, (unsigned)grid->threads,
                                      (unsigned)grid->threads_y, (unsigned)grid->threads_z,
                                      (unsigned)grid->shared, gpu->stream, values, NULL);
}

/* CUP_LOG=launch names each launch, CUP_LOG=time waits for it and tells its time. */
static cup_status say_launch(cup__cuda *gpu, const cup__kernel *kernel, const cup__grid *grid,
                             cup__timer *timer)
{
    char took[48] = "";
    if (timer) {
        double milliseconds;
        CUP_TRY(cup__timer_stop(timer, &milliseconds));
        snprintf(took, sizeof took, ", %.2f us", milliseconds * 1000);
    }
    cup__log(CUP__LAUNCH, "launch: %s for %s, %lld x %lld x %lld blocks of %d threads, %d bytes "
                          "of shared memory%s%s%s%s",
             kernel->name, gpu->op ? gpu->op : "no op", (long long)grid->x, (long long)grid->y,
             (long long)grid->z, grid->threads, grid->shared,
             grid->cluster > 1 ? ", in clusters" : "", grid->dependent ? ", dependent" : "",
             grid->together ? ", together" : "", took);
    return CUP_OK;
}

static cup_status launch_now(cup__cuda *gpu, const cup__kernel *kernel, const cup__grid *grid,
                             void **values)
{
    cup__cuda_note(gpu, kernel->name);
    if (gpu->dry)
        return CUP_OK;
    /* Cards before Hopper are asked for none of it; there a dependent launch is a plain one. */
    bool extended = gpu->clusters && (grid->cluster > 1 || grid->dependent || grid->together);
    CUresult result = extended ? launch_extended(gpu, kernel, grid, values)
                               : launch_plain(gpu, kernel, grid, values);
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    char doing[256];
    snprintf(doing, sizeof doing, "%s%slaunching %.100s", gpu->op ? gpu->op : "",
             gpu->op ? ": " : "", kernel->name);
    return cup__cuda_check(gpu, result, doing);
}

static cup_status launch_told(cup__cuda *gpu, const cup__kernel *kernel, const cup__grid *grid,
                              void **values)
{
    cup__timer *timer = NULL;
    if (cup__log_wants(CUP__TIME) && !gpu->capturing && !gpu->dry) {
        CUP_TRY(cup__timer_new(gpu, &timer));
        cup__timer_start(timer);
    }
    cup_status status = launch_now(gpu, kernel, grid, values);
    if (status == CUP_OK)
        status = say_launch(gpu, kernel, grid, timer);
    cup__timer_free(timer);
    return status;
}

cup_status cup__launch_arguments(cup__cuda *gpu, cup__kernel *kernel, cup__grid grid,
                                 const cup__argument *arguments, int count)
{
    void *values[CUP__MOST_ARGUMENTS];
    if (!kernel)
        return gpu->device.error->status ? gpu->device.error->status : CUP_INTERNAL;
    if (grid.x == 0)
        return CUP_OK;
    grid.y += grid.y == 0;
    grid.z += grid.z == 0;
    grid.threads_y += grid.threads_y == 0;
    grid.threads_z += grid.threads_z == 0;
    if (grid.x < 0 || grid.x > GRID_X_MOST || grid.y < 0 || grid.y > GRID_YZ_MOST || grid.z < 0 ||
        grid.z > GRID_YZ_MOST || grid.threads < 1 || grid.threads_y < 1 || grid.threads_z < 1 ||
        (int64_t)grid.threads * grid.threads_y * grid.threads_z > kernel->threads_most)
        return fail_grid(gpu, kernel, &grid);
    if (grid.waits && gpu->beside) {
        grid.together = true;
        grid.dependent = false;
    }
    CUP_TRY(check_arguments(gpu, kernel, arguments, count));
    CUP_TRY(cup__cuda_enter(gpu));
    if (grid.shared < 0 || grid.shared > kernel->shared_allowed)
        CUP_TRY(allow_shared(gpu, kernel, grid.shared));
    if (grid.cluster > 1)
        CUP_TRY(allow_cluster(gpu, kernel, grid.cluster));
    for (int i = 0; i < count; i++)
        values[i] = (void *)(uintptr_t)arguments[i].value;
    return cup__log_wants(CUP__LAUNCH) ? launch_told(gpu, kernel, &grid, values)
                                       : launch_now(gpu, kernel, &grid, values);
}

void cup__cuda_beside(cup__cuda *gpu, bool on)
{
    gpu->beside += on ? 1 : -1;
}

cup_status cup__clusters_at_once(cup__cuda *gpu, cup__kernel *kernel, const cup__grid *grid,
                                 int *most)
{
    *most = (int)(grid->x / grid->cluster);
    if (gpu->dry)
        return CUP_OK;
    CUP_TRY(cup__cuda_enter(gpu));
    if (grid->shared > kernel->shared_allowed)
        CUP_TRY(allow_shared(gpu, kernel, grid->shared));
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    attribute.value.clusterDim.x = (unsigned)grid->cluster;
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
    CUlaunchConfig config = {.gridDimX = (unsigned)grid->x,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = (unsigned)grid->threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = (unsigned)grid->shared,
                             .attrs = &attribute,
                             .numAttrs = 1};
    return cup__cuda_check(
        gpu, cup__driver.cuOccupancyMaxActiveClusters(most, kernel->function, &config),
        "asking how many clusters run at once");
}

bool cup__launched_last(const cup__cuda *gpu, const cup__kernel *kernel)
{
    const char *last = gpu->recent[(gpu->launches + CUP__RECENT - 1) % CUP__RECENT].what;
    return gpu->launches > 0 && last && strcmp(last, kernel->name) == 0;
}

void cup__launch_known(cup__cuda *gpu)
{
    gpu->written.count = 0;
    gpu->written.launches = gpu->launches;
}

void cup__launch_writes(cup__cuda *gpu, const void *data, int64_t bytes)
{
    int i = gpu->written.count;
    if (!data || i > CUP__WRITES || gpu->written.launches != gpu->launches)
        return;
    gpu->written.count++; /* over CUP__WRITES where there are more than are kept */
    if (i == CUP__WRITES)
        return;
    gpu->written.from[i] = data;
    gpu->written.to[i] = gpu->written.from[i] + bytes;
}

bool cup__launched_spares(const cup__cuda *gpu, const void *data, int64_t bytes)
{
    const char *from = data, *to = from + bytes;
    bool spares = !gpu->shown && gpu->launches > 0 && gpu->written.launches == gpu->launches &&
                  gpu->written.count <= CUP__WRITES;
    for (int i = 0; spares && i < gpu->written.count; i++)
        spares = to <= gpu->written.from[i] || gpu->written.to[i] <= from;
    return spares;
}

cup_status cup__launch_foreign(cup__cuda *gpu, const char *what)
{
    cup__cuda_note(gpu, what);
    if (cup__log_wants(CUP__LAUNCH))
        cup__log(CUP__LAUNCH, "launch: %s for %s", what, gpu->op ? gpu->op : "no op");
    return cup__cuda_enter(gpu);
}
