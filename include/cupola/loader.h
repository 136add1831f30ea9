/* cupola/loader.h: samples as shuffled batches, read ahead by a thread.
 *
 *     cup_loader_array arrays[] = {{.path = "x.npy"}, {.path = "y.npy"}};
 *     cup_loader *l = cup_loader_new(
 *         c, arrays, 2, CUP_OPTIONS(cup_loader_options, .batch = 64, .shuffle = true));
 *     for (int step = 0; step < steps; step++) {
 *         cup_tensor *batch[2];
 *         cup_scope_open(c);
 *         cup_loader_next(l, batch);
 *         ...
 *         cup_scope_close(c);
 *     } */
#ifndef CUPOLA_LOADER_H
#define CUPOLA_LOADER_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_loader cup_loader;

#define CUP_LOADER_ARRAYS 16

/* One tensor of every sample: an array [samples, ...] in memory or in a file. */
typedef struct cup_loader_array {
    const char *path;     /* a .npy file, or with `name` a safetensors one; NULL: in memory */
    const char *name;     /* of the tensor in the safetensors file */
    const void *data;     /* in memory: row-major, and there until the loader is freed */
    cup_dtype dtype;
    int ndim;             /* with the first dimension, that of the samples */
    const int64_t *shape;
} cup_loader_array;

/* Only `batch` must be set. */
typedef struct cup_loader_options {
    size_t size;     /* see CUP_OPTIONS */
    int64_t batch;   /* samples */
    bool shuffle;    /* each epoch in an order of its own; else as they lie */
    bool drop_last;  /* leaves out what is left of an epoch; else its last batch is smaller */
    uint64_t seed;   /* of the orders, 0 like any other: nothing else has a part in them */
    int prefetch;    /* batches that a thread reads ahead, up to 16; 0: 2; -1: none, no thread */
} cup_loader_options;

/* Which sample comes next: the `sample`-th of the epoch's order. */
typedef struct cup_loader_state {
    uint64_t seed;
    int64_t epoch, sample;
} cup_loader_state;

/* The arrays, 1 to 16, must have equally many samples. Files stay open, and rows are read when they
 * are needed. The thread makes no call on the context. Free the loader before the context. */
CUP_API cup_loader *cup_loader_new(cup_context *c, const cup_loader_array *arrays, int count,
                                   const cup_loader_options *options);
CUP_API void cup_loader_free(cup_loader *l);

/* The next batch: one tensor [samples, ...] an array into `batch`, in the innermost scope. Behind
 * the last of an epoch comes the first of the next. On a GPU the bytes go through pinned memory, on
 * a stream of their own, while the work before goes on. After a failure the batch is the next
 * still. Not while a graph is captured: have it before, and cup_copy_into what the graph reads. */
CUP_API cup_status cup_loader_next(cup_loader *l, cup_tensor **batch);

CUP_API int64_t cup_loader_samples(const cup_loader *l); /* -1 for NULL */
CUP_API int64_t cup_loader_batches(const cup_loader *l); /* of a whole epoch; -1 for NULL */

/* Where it stands, behind the last batch that was given, and going on from there: what comes then
 * is what would have come, also with another batch size. The seed is the state's. */
CUP_API cup_status cup_loader_where(const cup_loader *l, cup_loader_state *state);
CUP_API cup_status cup_loader_resume(cup_loader *l, const cup_loader_state *state);

#ifdef __cplusplus
}
#endif
#endif
