/* The bytes of a file one after the other, decompressed where its name ends in .gz or .zst. */
#ifndef CUP_DATA_STREAM_H
#define CUP_DATA_STREAM_H

#include "base/file.h"

typedef struct cup__stream {
    cup__file file;
    uint64_t read; /* bytes of the file that were read */
    const struct cup__packing *packing; /* NULL: as it is */
    void *state;                        /* of the library that unpacks */
    char *packed;                       /* bytes of the file to be unpacked */
    size_t at, end;                     /* of those */
    bool within;                        /* something packed has begun and not ended */
} cup__stream;

/* The length of a name without .gz or .zst. */
size_t cup__stream_name(const char *name);

/* `out` must be closed also after a failure. */
cup_status cup__stream_open(cup__error *error, const char *path, cup__stream *out);
void cup__stream_close(cup__stream *stream);

/* Reads up to `most` bytes; fewer only at the end. */
cup_status cup__stream_read(cup__error *error, cup__stream *stream, void *to, size_t most,
                            size_t *got);

#endif
