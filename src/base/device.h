/* What a context asks of its device. The CPU and CUDA each fill one table of calls; everything
 * above works on either. Memory is `device` memory: for the CPU, that is host memory. */
#ifndef CUP_BASE_DEVICE_H
#define CUP_BASE_DEVICE_H

#include "base/error.h"

typedef struct cup__device cup__device;

/* Bytes, counted for one device of one context. */
typedef struct cup__memory_use {
    int64_t allocated, peak_allocated; /* in use by tensors */
    int64_t reserved, peak_reserved;   /* held from the driver */
    int64_t largest_free;              /* biggest block that is reserved and not in use */
    int64_t limit;                     /* 0: none */
    int64_t free, total;               /* of the whole device */
    int64_t host;                      /* of the host's memory, see `pin` */
    int64_t allocations, cached;       /* calls, and those that asked the driver for nothing */
} cup__memory_use;

#define CUP__REACH_TEXT 320

typedef struct cup__device_calls {
    void (*close)(cup__device *device);
    /* Memory aligned to 256 bytes. The tag is a literal naming what it is for. */
    cup_status (*allocate)(cup__device *device, size_t bytes, const char *tag, void **out);
    void (*release)(cup__device *device, void *memory);
    /* The same of the host's memory, which ops use as their own, at the speed of the way there.
     * NULL where all memory is the host's. `unpin` waits for what uses it. */
    cup_status (*pin)(cup__device *device, size_t bytes, const char *tag, void **out);
    void (*unpin)(cup__device *device, void *memory, size_t bytes);
    /* `write` returns when the host memory may be reused, `read` when it holds the bytes. `copy`
     * and `fill` are ordered with the other work of the context and may return before. */
    cup_status (*write)(cup__device *device, void *to, const void *host, size_t bytes);
    cup_status (*read)(cup__device *device, void *host, const void *from, size_t bytes);
    cup_status (*copy)(cup__device *device, void *to, const void *from, size_t bytes);
    cup_status (*fill)(cup__device *device, void *to, int byte, size_t bytes);
    cup_status (*synchronize)(cup__device *device);
    /* Whether ops can use memory that is not the device's own; `why` says why not. */
    cup_status (*reach)(cup__device *device, const void *memory, size_t bytes,
                        char why[CUP__REACH_TEXT]);
    /* Calls `release` when nothing that the context has queued uses such memory any more. */
    void (*part)(cup__device *device, void (*release)(void *user), void *user);
    /* Waits for all work on the device, whoever queued it, as far as that is possible. */
    void (*idle)(cup__device *device);
    void (*memory_use)(cup__device *device, cup__memory_use *use);
    void (*limit)(cup__device *device, int64_t bytes); /* 0: none */
    int64_t (*trim)(cup__device *device); /* waits; the bytes given back to the driver */
} cup__device_calls;

struct cup__device {
    const cup__device_calls *calls;
    cup__error *error;  /* of the context */
    bool is_cuda;
    char text[320];     /* what it is and why it was taken */
};

/* Opens the CPU. `why` is put behind the name, or is NULL. */
cup_status cup__cpu_open(cup__error *error, int64_t memory_limit, const char *why,
                         cup__device **out);

#endif
