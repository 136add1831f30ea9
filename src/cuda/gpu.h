/* The inside of a GPU as a context uses it, for the files of this folder. */
#ifndef CUP_CUDA_GPU_H
#define CUP_CUDA_GPU_H

#include "cuda/cuda.h"
#include "cuda/kernel.h"
#include "cuda/loader.h"
#include "cuda/pool.h"
#include "cuda/staging.h"

#define CUP__WRITES 4 /* ranges that a kernel is known to write */
#define CUP__RECENT 8 /* launches remembered for error texts */

struct cup__cuda {
    cup__device device; /* first, so that a pointer to one is a pointer to the other */
    cup__gpu_facts facts;
    CUdevice handle;
    CUcontext context;
    CUstream stream;     /* what is queued goes here */
    bool shown;          /* the stream, to others: what is launched on it is not all known */
    CUstream own_stream; /* what it was at first, and is unless a caller's is used */
    bool virtual_memory; /* the driver and the card can map memory into reserved addresses */
    bool clusters;
    int beside;          /* so many others run something on streams of their own as well */
    unsigned forks;      /* value of cup__forks when it was opened */
    bool lost;           /* the driver refuses everything after what lost_text says */
    char lost_text[1024];
    const char *op;
    cup__pool *pool;
    cup__staging staging;
    struct cup__ferry *ferry; /* once something is brought and taken back, see ferry.h */
    int64_t pinned; /* bytes of the host's memory that tensors have */
    cup__kernels kernels;
    cup__graph *capturing; /* the one being captured, else NULL */
    cup__graph *graphs;    /* all others */
    struct cup__dry *dry;  /* NULL, but for a GPU that is not there: see dry.h */
    uint64_t launches;
    struct {
        const char *what, *op;
    } recent[CUP__RECENT]; /* launch i is at i % CUP__RECENT */
    struct {
        uint64_t launches; /* when that was said; 0: never */
        int count;
        const char *from[CUP__WRITES], *to[CUP__WRITES];
    } written; /* by the last one, see cup__launch_known */
};

/* Counts the forks between this process and the one that loaded the driver. */
extern unsigned cup__forks;

/* Makes the GPU current on this thread. Every call that reaches the driver begins with it. */
cup_status cup__cuda_enter(cup__cuda *gpu);

/* Makes the GPU current for calls that free, which are made even after a failure; false when this
 * process is a forked child, in which the driver must not be called. */
bool cup__cuda_enter_to_free(cup__cuda *gpu);

/* Makes a failed call into a status and a sentence; `doing` is what was being done. CUDA_SUCCESS
 * gives CUP_OK. */
cup_status cup__cuda_check(cup__cuda *gpu, CUresult result, const char *doing);

/* Remembers a launch for error texts. */
void cup__cuda_note(cup__cuda *gpu, const char *what);

/* Captures a copy of these bytes, which the graph keeps. */
cup_status cup__graph_write(cup__cuda *gpu, void *to, const void *host, size_t bytes);
void cup__graphs_close(cup__cuda *gpu, bool driver);

/* Calls `release` when the graph that is captured is freed; after a failure it was not taken. */
cup_status cup__graph_part(cup__cuda *gpu, void (*release)(void *user), void *user);

/* Memory of others, for the device's table. */
cup_status cup__cuda_reach(cup__device *device, const void *memory, size_t bytes,
                           char why[CUP__REACH_TEXT]);
void cup__cuda_part(cup__device *device, void (*release)(void *user), void *user);
void cup__cuda_idle(cup__device *device);

/* Memory of the host, for the same. */
cup_status cup__cuda_pin(cup__device *device, size_t bytes, const char *tag, void **out);
void cup__cuda_unpin(cup__device *device, void *memory, size_t bytes);

/* "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)" */
#define CUP__RESULT_TEXT 256
const char *cup__cuda_result_text(CUresult result, char out[CUP__RESULT_TEXT]);

/* Why CUDA could not be started on this machine, and the cure, as far as can be seen from here. */
void cup__cuda_explain(CUresult result, char *out, size_t size);

#endif
