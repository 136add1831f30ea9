/* cupola/wrap.h: memory of the caller's as a tensor, and a tensor's memory for others. Other
 * libraries' arrays come and go without a copy; cupola/dlpack.h does both by DLPack. */
#ifndef CUPOLA_WRAP_H
#define CUPOLA_WRAP_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_wrap_options {
    size_t size;             /* see CUP_OPTIONS */
    const int64_t *strides;  /* in elements, one a dimension, none negative; NULL: row-major */
    bool read_only;          /* no call changes the memory: those that would fail */
    void (*release)(void *user); /* NULL: nobody is told */
    void *user;
} cup_wrap_options;

/* A tensor that is the caller's memory: of the host on a CPU context, of the context's GPU
 * otherwise, which the driver is asked about. `memory` is that of element 0, at a multiple of the
 * element's size; NULL only without elements. What may be written has one address for each element:
 * each dimension steps over all that the smaller strides reach. A bool is 0 or 1.
 *
 * The tensor is like others: it belongs to the innermost scope or is kept, and views, the tape and
 * holds of it keep the memory in use. When the last of them has ended, or with the context,
 * `release` is called once, in the thread that ended it; it must make no call on the context. On
 * a GPU the context's work is waited for before; while a graph is captured, the graph's end. Where
 * the memory is written from outside meanwhile, or wrapped twice, gradients do not know of it.
 *
 * NULL on failure, and `release` is not called then. Work of others that fills the memory must be
 * done, or be waited for by the context's stream, before it is used. */
CUP_API cup_tensor *cup_tensor_wrap(cup_context *c, cup_dtype dtype, int ndim,
                                    const int64_t *shape, void *memory,
                                    const cup_wrap_options *options);

/* A tensor's memory, which stays in use and in its place until the hold is freed, also when the
 * tensor or the context was freed before. */
typedef struct cup_hold {
    void *data; /* of element 0; in the memory of the GPU when device >= 0 */
    cup_dtype dtype;
    int ndim;
    int64_t shape[CUP_MAX_DIMS], strides[CUP_MAX_DIMS]; /* strides in elements */
    int device;     /* the number of the GPU; -1: the host */
    bool read_only; /* it was wrapped so, or gradients rely on what it holds */
} cup_hold;

/* NULL on failure. On a GPU what fills the memory may not be done yet: call cup_synchronize first,
 * or queue behind it. Free the hold when nothing outside uses the memory any more; that is a call
 * on the context, in its thread, like others. NULL is allowed. */
CUP_API const cup_hold *cup_tensor_hold(cup_tensor *t);
CUP_API void cup_hold_free(const cup_hold *hold);

#ifdef __cplusplus
}
#endif
#endif
