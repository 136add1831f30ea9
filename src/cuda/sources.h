/* The device sources, embedded when the library is built.
 *
 * They stand packed, one text behind the other, each ended by a 0. tools/embed.c writes, over and
 * over: how many bytes follow as they are, these bytes, and unless that was all, the length of a
 * repetition less 4 and how far back it begins, in two bytes, low first. Numbers have 7 bits a
 * byte, low ones first, and the 8th where more follow. */
#ifndef CUP_CUDA_SOURCES_H
#define CUP_CUDA_SOURCES_H

#include <stddef.h>

typedef struct cup__source {
    const char *name; /* "copy.cu", "dtype.cuh" */
    const char *path; /* from the project's root */
    const char *text;
    size_t size;
} cup__source;

/* All of them, ending with a NULL name; any thread. */
const cup__source *cup__sources(void);

/* What tools/embed.c writes. The texts are unpacked when the first one is asked for, into memory
 * that takes no place in the library and is there from the begin, so that it cannot fail. */
extern const unsigned char cup__sources_packed[];
extern char *const cup__sources_text;
extern const size_t cup__sources_size;
extern const cup__source cup__sources_rows[];

#endif
