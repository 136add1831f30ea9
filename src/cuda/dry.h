/* A GPU that is not there: ops run on it as on a real one, up to the kernels, which are noted
 * instead of compiled and launched. So a machine without a GPU learns which kernels an
 * architecture needs, and can compile them. */
#ifndef CUP_CUDA_DRY_H
#define CUP_CUDA_DRY_H

#include "cuda/cuda.h"
#include "cuda/kernels.h"

/* Opens a dry GPU of an architecture, "sm_90a". Its memory is host memory of any content, of which
 * it counts what is in use as a GPU's pool does. */
cup_status cup__dry_open(cup__error *error, const char *arch, cup__device **out);

/* Begins to look for the peak of what is in use anew. */
void cup__dry_forget_peak(cup__device *device);

/* Has each call of an op shown before it runs: a cup__call, which this layer does not know. NULL
 * ends it. */
void cup__dry_watch(cup__device *device, void (*called)(void *call, void *user), void *user);
/* For dispatch: shows a call, and does not show those that it makes itself. */
void cup__dry_watch_pause(cup__device *device, void *call, void (**called)(void *, void *));
void cup__dry_watch_on(cup__device *device, void (*called)(void *, void *));

/* Makes it answer as a certain card does, of which its architecture must be that. */
void cup__dry_like(cup__cuda *gpu, const cup__gpu_facts *facts);

/* Whether a device is a dry GPU: what is written to it is not kept. */
bool cup__device_is_dry(const cup__device *device);

/* Whether the memory is a piece of a dry GPU's that is in use. */
bool cup__dry_holds(const cup__device *device, const void *memory);

/* What has been asked of it so far, each compilation once; borrowed until it is closed. */
const cup__kernel_request *cup__dry_requests(const cup__cuda *gpu, int *count);

/* Forgets all that was asked of it but the first `count`. */
void cup__dry_forget(cup__cuda *gpu, int count);

/* The architectures kernels are made for, ending with NULL. */
extern const char *const cup__architectures[];

/* For kernel.c: notes the request and gives a kernel that a launch takes and does nothing with. */
cup__kernel *cup__dry_kernel(cup__cuda *gpu, const cup__kernel_request *request);

#endif
