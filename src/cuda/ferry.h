/* Pieces of the host's pinned memory that come to the GPU, are changed there and go back: copies on
 * two streams, one for each way, beside what the context computes. All may be captured. */
#ifndef CUP_CUDA_FERRY_H
#define CUP_CUDA_FERRY_H

#include "cuda/cuda.h"

/* One comes, one is changed and one goes back. */
#define CUP__FERRY_PLACES 3

typedef struct cup__ferry_copy {
    void *here, *host; /* in the GPU's memory, and pinned */
    size_t bytes;
} cup__ferry_copy;

/* What is brought until the end comes behind all that the context has queued. */
cup_status cup__ferry_begin(cup__cuda *gpu);

/* Brings a piece into a place, behind what went back from there; what the context queues then comes
 * behind these copies. */
cup_status cup__ferry_bring(cup__cuda *gpu, int place, const cup__ferry_copy *copies, int count);

/* Takes it back, behind what the context has queued since. */
cup_status cup__ferry_return(cup__cuda *gpu, int place, const cup__ferry_copy *copies, int count);

/* What the context queues comes behind all that was taken back. */
cup_status cup__ferry_end(cup__cuda *gpu);

void cup__ferry_close(cup__cuda *gpu, bool driver);

#endif
