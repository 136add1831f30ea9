/* NumPy's files of one array, format 1.0 to 3.0, read. */
#ifndef CUP_IO_NPY_H
#define CUP_IO_NPY_H

#include "base/file.h"
#include "cupola/tensor.h"

typedef struct cup__npy {
    cup__file file;
    cup_dtype dtype;
    int ndim;
    int64_t shape[CUP_MAX_DIMS];
    uint64_t begin, bytes; /* of the elements, row-major */
} cup__npy;

/* Opens a file and checks all that can be checked without reading the elements. */
cup_status cup__npy_open(cup__error *error, const char *path, cup__npy *out);
/* The same for a file that is open; it is taken over, also on failure. */
cup_status cup__npy_take(cup__error *error, cup__file *file, cup__npy *out);
void cup__npy_close(cup__npy *npy);

#endif
