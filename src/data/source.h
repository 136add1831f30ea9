/* Where a loader's samples lie. */
#ifndef CUP_DATA_SOURCE_H
#define CUP_DATA_SOURCE_H

#include "cupola/loader.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

typedef struct cup__source {
    cup__shape sample;
    int64_t samples;
    size_t bytes; /* a sample */
    const char *data; /* in memory, or NULL */
    cup__npy npy;
    cup__safetensors tensors;
    const cup__safetensors_entry *entry; /* NULL: it is in the .npy file */
} cup__source;

/* `out` must be closed also after a failure. */
cup_status cup__source_open(cup__error *error, const cup_loader_array *array, cup__source *out);
void cup__source_close(cup__source *source);

/* The samples [first, first + count), one after the other. */
cup_status cup__source_read(cup__error *error, const cup__source *source, int64_t first,
                            int64_t count, void *to);

/* The order of the samples of an epoch: a function of its arguments, each order as likely. */
void cup__order_make(uint32_t *order, int64_t samples, uint64_t seed, int64_t epoch);

#endif
