/* Streams and events between a context and others. None of the calls is possible while a graph is
 * captured. */
#ifndef CUP_CUDA_STREAM_H
#define CUP_CUDA_STREAM_H

#include "cuda/cuda.h"

/* Work queued from now on on another stream comes after what the context has queued; and the other
 * way round. */
cup_status cup__cuda_lead(cup__cuda *gpu, CUstream other);
cup_status cup__cuda_follow(cup__cuda *gpu, CUstream other);

/* Goes on on another stream, behind what was queued; NULL: on its own. */
cup_status cup__cuda_use(cup__cuda *gpu, CUstream stream);

cup_status cup__event_open(cup__cuda *gpu, CUevent *out);
void cup__event_close(cup__cuda *gpu, CUevent event);
cup_status cup__event_record(cup__cuda *gpu, CUevent event);
/* `gpu` waits for an event, which may be of another. */
cup_status cup__event_wait(cup__cuda *gpu, CUevent event);
cup_status cup__event_synchronize(cup__cuda *gpu, CUevent event);
/* Also when it cannot be asked. */
bool cup__event_is_done(cup__cuda *gpu, CUevent event);
cup_status cup__event_elapsed(cup__cuda *gpu, CUevent from, CUevent to, double *milliseconds);

#endif
