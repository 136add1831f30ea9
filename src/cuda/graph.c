/* Captured work that can be launched again. */
#include <string.h>

#include "base/memory.h"
#include "cuda/gpu.h"

/* Host bytes that a captured copy reads each time the graph is launched. */
typedef struct pinned {
    struct pinned *next;
    void *memory;
} pinned;

/* Memory of others that was let go of while the graph was captured. */
typedef struct parted {
    struct parted *next;
    void (*release)(void *user);
    void *user;
} parted;

struct cup__graph {
    cup__cuda *gpu; /* NULL once that is closed */
    cup__graph *next;
    CUgraphExec runnable;
    cup__pool_private *memory;
    pinned *written;
    parted *parted;
};

static void release(cup__graph *graph, bool driver)
{
    cup__cuda *gpu = graph->gpu;
    if (driver && graph->runnable) {
        cup__driver.cuStreamSynchronize(gpu->stream);
        cup__driver.cuGraphExecDestroy(graph->runnable);
    }
    cup__pool_private_free(graph->memory);
    while (graph->written) {
        pinned *gone = graph->written;
        graph->written = gone->next;
        if (driver)
            cup__driver.cuMemFreeHost(gone->memory);
        cup__free(gone);
    }
    while (graph->parted) {
        parted *gone = graph->parted;
        graph->parted = gone->next;
        gone->release(gone->user);
        cup__free(gone);
    }
    graph->runnable = NULL;
    graph->memory = NULL;
    graph->gpu = NULL;
}

static void unlink_graph(cup__graph *graph)
{
    for (cup__graph **link = &graph->gpu->graphs; *link; link = &(*link)->next)
        if (*link == graph) {
            *link = graph->next;
            return;
        }
}

void cup__graph_free(cup__graph *graph)
{
    if (!graph)
        return;
    cup__cuda *gpu = graph->gpu;
    if (gpu) {
        unlink_graph(graph);
        release(graph, cup__cuda_enter_to_free(gpu));
    }
    cup__free(graph);
}

void cup__graphs_close(cup__cuda *gpu, bool driver)
{
    if (gpu->capturing) {
        CUgraph captured = NULL;
        if (driver && cup__driver.cuStreamEndCapture(gpu->stream, &captured) == CUDA_SUCCESS &&
            captured)
            cup__driver.cuGraphDestroy(captured);
        cup__pool_private_end(gpu->pool);
        cup__graph *graph = gpu->capturing;
        gpu->capturing = NULL;
        release(graph, driver);
        cup__free(graph);
    }
    while (gpu->graphs) {
        cup__graph *graph = gpu->graphs;
        gpu->graphs = graph->next;
        release(graph, driver);
    }
}

cup_status cup__graph_begin(cup__cuda *gpu, cup__graph *before)
{
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__fail(gpu->device.error, CUP_STATE,
                         "a graph is being captured already; end it before beginning another");
    /* Nothing may be under way: memory that is given up meanwhile is then free at once. */
    CUP_TRY(cup__cuda_check(gpu, cup__driver.cuStreamSynchronize(gpu->stream),
                            "waiting for the GPU before a capture"));
    cup__graph *graph = cup__calloc(1, sizeof *graph);
    if (!graph)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a graph");
    graph->gpu = gpu;
    graph->memory = before ? before->memory : NULL;
    cup_status status = cup__pool_private_begin(gpu->pool, &graph->memory);
    /* Relaxed: kernels may be compiled and memory may be mapped while capturing. */
    if (status == CUP_OK)
        status = cup__cuda_check(
            gpu, cup__driver.cuStreamBeginCapture(gpu->stream, CU_STREAM_CAPTURE_MODE_RELAXED),
            "beginning a capture");
    if (status == CUP_OK) {
        gpu->capturing = graph;
        return CUP_OK;
    }
    cup__pool_private_end(gpu->pool);
    release(graph, true);
    cup__free(graph);
    return status;
}

static cup_status instantiate(cup__cuda *gpu, cup__graph *graph)
{
    CUgraph captured = NULL;
    CUresult result = cup__driver.cuStreamEndCapture(gpu->stream, &captured);
    if (result == CUDA_SUCCESS && captured)
        result = cup__driver.cuGraphInstantiateWithFlags(&graph->runnable, captured, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && captured && cup__pool_trim(gpu->pool) > 0)
        result = cup__driver.cuGraphInstantiateWithFlags(&graph->runnable, captured, 0);
    if (captured)
        cup__driver.cuGraphDestroy(captured);
    if (result == CUDA_SUCCESS && !graph->runnable)
        return cup__fail(gpu->device.error, CUP_DRIVER, "the capture of a graph gave nothing");
    return cup__cuda_check(gpu, result, "ending a capture");
}

cup_status cup__graph_end(cup__cuda *gpu, cup__graph **out)
{
    *out = NULL;
    cup__graph *graph = gpu->capturing;
    if (!graph)
        return cup__fail(gpu->device.error, CUP_STATE, "no graph is being captured; begin one");
    cup_status status = cup__cuda_enter(gpu);
    if (status == CUP_OK)
        status = instantiate(gpu, graph);
    gpu->capturing = NULL;
    cup__pool_private_end(gpu->pool);
    if (status != CUP_OK) {
        release(graph, cup__cuda_enter_to_free(gpu));
        cup__free(graph);
        return status;
    }
    graph->next = gpu->graphs;
    gpu->graphs = graph;
    *out = graph;
    return CUP_OK;
}

cup_status cup__graph_launch(cup__graph *graph)
{
    cup__cuda *gpu = graph->gpu;
    if (!gpu)
        return CUP_STATE;
    CUP_TRY(cup__cuda_enter(gpu));
    if (gpu->capturing)
        return cup__fail(gpu->device.error, CUP_STATE,
                         "a graph cannot be launched while another is captured");
    cup__cuda_note(gpu, "a captured graph");
    return cup__cuda_check(gpu, cup__driver.cuGraphLaunch(graph->runnable, gpu->stream),
                           "launching a graph");
}

cup_status cup__graph_part(cup__cuda *gpu, void (*release_it)(void *user), void *user)
{
    parted *kept = cup__malloc(sizeof *kept);
    if (!kept)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a graph");
    *kept = (parted){gpu->capturing->parted, release_it, user};
    gpu->capturing->parted = kept;
    return CUP_OK;
}

cup_status cup__graph_write(cup__cuda *gpu, void *to, const void *host, size_t bytes)
{
    pinned *kept = cup__calloc(1, sizeof *kept);
    if (!kept)
        return cup__fail(gpu->device.error, CUP_MEMORY, "out of host memory for a captured copy");
    cup_status status =
        cup__cuda_check(gpu, cup__driver.cuMemHostAlloc(&kept->memory, bytes, 0),
                        "getting pinned memory for a captured copy");
    if (status != CUP_OK) {
        cup__free(kept);
        return status;
    }
    kept->next = gpu->capturing->written;
    gpu->capturing->written = kept;
    memcpy(kept->memory, host, bytes);
    return cup__cuda_check(gpu,
                           cup__driver.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to, kept->memory,
                                                         bytes, gpu->stream),
                           "copying to the GPU");
}
