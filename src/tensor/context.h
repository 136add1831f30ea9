/* The inside of a context: one device, its scopes, tape, random state and first error. */
#ifndef CUP_TENSOR_CONTEXT_H
#define CUP_TENSOR_CONTEXT_H

#include "base/device.h"
#include "cupola/tensor.h"

struct cup__tape;

typedef struct cup__scope {
    cup_tensor *tensors; /* head of a doubly linked list */
} cup__scope;

/* Random numbers are a pure function of (seed, step, sequence, element): `state` holds seed and
 * step in device memory, so that a captured graph advances; `sequence` counts the calls of a
 * step that draw numbers. */
typedef struct cup__random {
    uint64_t *state; /* device memory: seed, step */
    uint64_t seed, step;
    uint32_t sequence;
} cup__random;

struct cup_context {
    cup__error error;
    cup__device *device;
    cup_options options;
    cup__scope *scopes; /* scopes[0] is the context's own and is never closed */
    size_t depth, scope_capacity;
    cup_tensor *kept;
    cup_tensor *spare; /* tensor structs to use again */
    struct cup__tape *tape;
    bool recording;
    cup__random random;
    void *cuda_ops; /* what CUDA implementations keep for the context (cuBLASLt handle, ...) */
    void (*cuda_ops_free)(void *);
};

#endif
