/* A stand-in for the CUDA driver, so that what talks to it can be tested on a machine without a
 * GPU. "Device memory" is host memory; work is queued and done as late as the driver may do it,
 * so that a buffer used again too early shows.
 *
 * What it pretends to be is read from the environment when it is first asked:
 *     FAKE_CUDA_DEVICES     number of GPUs (1)
 *     FAKE_CUDA_DRIVER      version (13000)
 *     FAKE_CUDA_CAPABILITY  of the GPUs (90)
 *     FAKE_CUDA_MEMORY      bytes of each (1 GiB)
 *     FAKE_CUDA_OTHERS      bytes of them that other programs hold (0)
 *     FAKE_CUDA_VMM         0: no virtual memory management
 *     FAKE_CUDA_ADDRESSES   the most bytes of addresses that can be reserved at once
 *     FAKE_CUDA_INIT        what cuInit returns (0) */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

#include "cuda/api.h"

/* The n-th call from now on of `name`, or of any when it is NULL, fails with `result`; n = 0 turns
 * it off. Calls that only free are neither counted nor failed. */
typedef void fake_fail_function(const char *name, long n, CUresult result);

/* Calls made of `name`, or of all when it is NULL. */
typedef long fake_calls_function(const char *name);

/* What was made and not freed; `words` (of 512 bytes) lists it. */
typedef long fake_live_function(char *words);

/* The work that is queued and not done. */
typedef long fake_queued_function(void);

#ifdef FAKE_INSIDE

/* Each call begins with ENTER, or with LEAVE when it frees. */
CUresult fake_enter(const char *name);
void fake_leave(const char *name);
#define ENTER                                                                                      \
    do {                                                                                           \
        CUresult refused = fake_enter(__func__);                                                   \
        if (refused != CUDA_SUCCESS)                                                               \
            return refused;                                                                        \
    } while (0)
#define LEAVE fake_leave(__func__)

typedef enum fake_kind {
    FAKE_CONTEXT,
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_MEMORY,
    FAKE_PINNED,
    FAKE_RESERVED,
    FAKE_MAPPED,
    FAKE_HANDLE,
    FAKE_MODULE,
    FAKE_GRAPH,
    FAKE_RUNNABLE,
    FAKE_KINDS
} fake_kind;
void fake_count(fake_kind kind, long change);
long fake_setting(const char *name, long usual);

/* Memory the driver knows of, for cuPointerGetAttribute: of the current device, or pinned. */
void fake_range_add(const void *memory, size_t bytes, CUmemorytype type);
void fake_range_remove(const void *memory);

/* Queues one piece of work; done at the latest by fake_finish. */
typedef struct fake_work {
    struct fake_work *next;
    enum { FAKE_COPY, FAKE_FILL, FAKE_LAUNCH, FAKE_RECORD, FAKE_WAIT } what;
    void *to;
    const void *from;
    size_t bytes;
    int byte;
    CUevent event;
    long recording; /* of the event, that a wait is for */
    CUfunction function;
    unsigned long long arguments[64];
    const struct fake_update *update;
} fake_work;
CUresult fake_queue(CUstream stream, const fake_work *work);
void fake_finish(void);
void fake_launch(const fake_work *work);

/* What a launch of adamw_step was given, one of a list. */
typedef struct fake_update fake_update;
fake_update *fake_update_new(void **arguments, unsigned blocks, fake_update *next);
void fake_update_free(fake_update *first);
void fake_update_run(const fake_update *u);

#endif
#endif
