/* cupola/graph.h: capture a sequence of calls, a whole training step for example, once and replay
 * it at almost no cost on the host. GPU contexts only. */
#ifndef CUPOLA_GRAPH_H
#define CUPOLA_GRAPH_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_graph cup_graph;

/* From here on, calls on the context are recorded instead of run. Run the same calls once before,
 * so that kernels are compiled. Until the capture ends nothing may be read from the device. On a
 * CPU context it fails with CUP_UNSUPPORTED. */
CUP_API cup_status cup_capture_begin(cup_context *c);

/* Ends the capture. The graph owns the memory of tensors made meanwhile: kept ones hold, after
 * each replay, what it computed. NULL on failure; the context then works as before. */
CUP_API cup_graph *cup_capture_end(cup_context *c);

/* Replays the recorded calls on the tensors they were recorded with: write new inputs into them
 * with cup_tensor_write, and start the next random step with cup_random_step, before each replay.
 * Returns before the work is done. */
CUP_API cup_status cup_graph_launch(cup_graph *graph);

/* Frees the graph; tensors that were made during its capture must not be used any more. */
CUP_API void cup_graph_free(cup_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
