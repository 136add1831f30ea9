/* The device sources, embedded when the library is built. */
#ifndef CUP_CUDA_SOURCES_H
#define CUP_CUDA_SOURCES_H

#include <stddef.h>

typedef struct cup__source {
    const char *name; /* "copy.cu", "dtype.cuh" */
    const char *path; /* from the project's root */
    const char *text;
    size_t size;
} cup__source;

extern const cup__source cup__sources[]; /* ends with a NULL name */

#endif
