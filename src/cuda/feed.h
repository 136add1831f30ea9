/* Copies to the GPU on a stream of their own, out of pinned memory, beside the work of a context.
 * All calls are made by the context's thread; only the pinned memory may be filled by another. */
#ifndef CUP_CUDA_FEED_H
#define CUP_CUDA_FEED_H

#include "cuda/cuda.h"

typedef struct cup__feed cup__feed;

/* `slots` pieces of pinned memory of `bytes` each. */
cup_status cup__feed_open(cup__cuda *gpu, int slots, size_t bytes, cup__feed **out);
/* Waits for its copies. Without `driver` only host memory is freed. NULL is allowed. */
void cup__feed_close(cup__feed *feed, bool driver);

char *cup__feed_memory(cup__feed *feed, int slot);

/* Copies out of a slot come after what the context has queued, since their targets may be in use
 * until then; those that follow the join of a slot in the context come after its copies. */
cup_status cup__feed_begin(cup__feed *feed);
cup_status cup__feed_copy(cup__feed *feed, void *to, const void *from, size_t bytes);
cup_status cup__feed_end(cup__feed *feed, int slot);
cup_status cup__feed_join(cup__feed *feed, int slot);

/* Waits until the copies out of a slot are done. */
cup_status cup__feed_wait(cup__feed *feed, int slot);

#endif
