/* Copies between host memory and the GPU through pinned memory, which the GPU reads and writes at
 * full speed and while the host goes on. */
#ifndef CUP_CUDA_STAGING_H
#define CUP_CUDA_STAGING_H

#include "base/device.h"
#include "cuda/cuda.h"

#define CUP__STAGING_PIECES 4

/* A ring of pinned pieces. A piece is filled from its start; its event says when the GPU has done
 * with all that was put into it. */
typedef struct cup__staging {
    char *memory;
    CUevent done[CUP__STAGING_PIECES];
    bool pending[CUP__STAGING_PIECES]; /* the event was recorded and not yet waited for */
    int piece;
    size_t used; /* bytes of the current piece */
    bool tried;  /* to get the memory; without it copies go straight from pageable memory */
} cup__staging;

cup_status cup__staging_write(cup__device *device, void *to, const void *host, size_t bytes);
cup_status cup__staging_read(cup__device *device, void *host, const void *from, size_t bytes);
void cup__staging_close(cup__cuda *gpu, bool driver);

#endif
