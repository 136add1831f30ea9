/* One image of a file: decoded, and scaled. */
#ifndef CUP_DATA_PICTURE_H
#define CUP_DATA_PICTURE_H

#include "base/error.h"

typedef struct cup__picture {
    uint8_t *pixels; /* [height, width, channels]; freed by whoever has it */
    int64_t height, width, channels;
} cup__picture;

/* Whether a file's name says that it is a PNG, a JPEG or a WebP. */
bool cup__picture_named(const char *path);

/* Decodes a file, which its first bytes tell the kind of, with 1 or 3 channels. */
cup_status cup__picture_read(cup__error *error, const char *path, int64_t channels,
                             cup__picture *out);
/* The same of bytes in memory; `path` is for sentences. */
cup_status cup__picture_decode(cup__error *error, const char *path, const void *bytes, size_t count,
                               int64_t channels, cup__picture *out);

/* Scales the whole of an image to the size and channels of another, which has its memory: each
 * pixel is the mean, under a triangle, of those it covers, or lies between its neighbours. */
cup_status cup__picture_fit(cup__error *error, const cup__picture *from, cup__picture *to);

#endif
