/* Compiled kernels without a GPU: for `make kernels` and `cupola kernels`. */
#ifndef CUP_CUDA_KERNELS_H
#define CUP_CUDA_KERNELS_H

#include "cuda/cache.h"

/* One compilation: a source and its knobs. */
typedef struct cup__kernel_request {
    const char *file;
    const cup__knob *knobs;
    int knob_count;
    const char *text; /* the source; NULL: that of the file of this name */
} cup__kernel_request;

/* Code for an architecture: of this process, else of the pack, else of the cache, else compiled.
 * It lives as long as the process. Any thread. */
cup_status cup__code_get(cup__error *error, const char *arch, const cup__kernel_request *request,
                         const cup__code **out);

/* Called after each request, one call at a time but from any thread; `failure` is NULL or says
 * what went wrong. */
typedef void (*cup__kernel_progress)(void *user, int done, int count,
                                     const cup__kernel_request *request, const char *failure);

/* Gets all of them ready, on `threads` threads (0: one a core). The first failure is returned, and
 * the others are worked on all the same. `progress` may be NULL. */
cup_status cup__kernels_prepare(cup__error *error, const char *arch,
                                const cup__kernel_request *requests, int count, int threads,
                                cup__kernel_progress progress, void *user);

/* Gets in this thread those that no other thread is getting just now, for those who work ahead: who
 * needs the others will wait for them. What fails is met again when it is needed. */
void cup__kernels_ahead(const char *arch, const cup__kernel_request *requests, int count);

/* Writes all code that this process has got so far, for all architectures, to a pack. */
cup_status cup__kernels_pack(cup__error *error, const char *path, int *count);

#endif
