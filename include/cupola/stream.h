/* cupola/stream.h: the order of work on a GPU, with that of other contexts and other libraries.
 *
 * A context queues its work on one stream, in order. Contexts on one GPU have a stream each, so
 * that their work goes side by side; tensors pass from one to another by cupola/wrap.h. Events say
 * what comes before what. On a CPU, where a call has done its work when it returns, all of this is
 * there and waits for nothing. */
#ifndef CUPOLA_STREAM_H
#define CUPOLA_STREAM_H

#include "cupola/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A point in the work of the context it was made in. */
typedef struct cup_event cup_event;

CUP_API cup_event *cup_event_new(cup_context *c);
CUP_API void cup_event_free(cup_event *e); /* NULL is allowed, as is a context that was freed */

/* The point is now: behind all that its context has queued. It may be moved again. Not while a
 * graph is captured. */
CUP_API cup_status cup_event_record(cup_event *e);

/* What c queues from now on comes after the point; c may be another context, also on another GPU.
 * The caller does not wait. An event that was never recorded is an error. Not while c captures a
 * graph. */
CUP_API cup_status cup_event_wait(cup_context *c, cup_event *e);

/* Waits until the work before the point is done; whether it is done, without waiting. */
CUP_API cup_status cup_event_synchronize(cup_event *e);
CUP_API bool cup_event_is_done(cup_event *e);

/* Milliseconds from one point to another, which the device must have passed: cup_event_synchronize
 * waits for that. Both on the same device. NAN on failure, with an error in the first one's
 * context. */
CUP_API double cup_event_elapsed(cup_event *from, cup_event *to);

/* Streams of CUDA are CUstream or cudaStream_t, given as pointers: 1 is the legacy default stream
 * and 2 that of the thread.
 *
 * Queues the context's work on a stream of the caller's from now on, behind what it has queued so
 * far, or with NULL on its own again. The stream must stay until then or until the context is
 * freed. Memory is used again in the order of the context's work as before; what others queue on
 * that stream comes in between. Not while a graph is captured. */
CUP_API cup_status cup_stream_use(cup_context *c, void *stream);

/* The stream that the context's work is queued on; NULL on a CPU. */
CUP_API void *cup_stream_handle(const cup_context *c);

/* What the context queues from now on comes after all that the stream has now; and the other way
 * round. Neither is possible while a graph is captured. */
CUP_API cup_status cup_stream_wait(cup_context *c, void *stream);
CUP_API cup_status cup_stream_lead(cup_context *c, void *stream);

#ifdef __cplusplus
}
#endif
#endif
