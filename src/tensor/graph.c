#include "cupola/graph.h"

#include "base/memory.h"
#include "cuda/cuda.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

struct cup_graph {
    cup_context *context;
    cup__graph *captured;
};

static cup_status begin(cup_context *c, cup__graph *before)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    if (!c->device->is_cuda)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "a CPU has no graphs to capture; call the ops directly");
    CUP_TRY(cup__coming_end_all(c));
    return cup__graph_begin(cup__cuda_of(c->device), before);
}

cup_status cup_capture_begin(cup_context *c)
{
    CUP__DEBUG_CALL(c);
    return begin(c, NULL);
}

cup_status cup__capture_after(cup_context *c, cup_graph *before)
{
    return begin(c, before->captured);
}

cup_graph *cup_capture_end(cup_context *c)
{
    if (!c || !c->device || !c->device->is_cuda)
        return NULL;
    CUP__DEBUG_CALL(c);
    cup_graph *graph = cup__calloc(1, sizeof *graph);
    cup__graph *captured = NULL;
    cup__coming_end_all(c);
    cup_status status = cup__graph_end(cup__cuda_of(c->device), &captured);
    if (graph && status == CUP_OK && c->error.status == CUP_OK) {
        *graph = (cup_graph){c, captured};
        cup__context_join(c);
        return graph;
    }
    if (captured)
        cup__graph_free(captured);
    if (!graph)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a graph");
    cup__free(graph);
    return NULL;
}

cup_status cup_graph_launch(cup_graph *graph)
{
    if (!graph)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(graph->context);
    if (graph->context->error.status != CUP_OK)
        return graph->context->error.status;
    return cup__graph_launch(graph->captured);
}

void cup_graph_free(cup_graph *graph)
{
    if (!graph)
        return;
    cup__graph_free(graph->captured);
    cup__context_leave(graph->context);
    cup__free(graph);
}
