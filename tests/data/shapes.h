/* Small images of three classes, bars, posts and both, anywhere, as IDX files. */
#ifndef TESTS_DATA_SHAPES_H
#define TESTS_DATA_SHAPES_H

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "test.h"

enum { SHAPES_SIDE = 8, SHAPES_MOST = 120 };

static inline void shapes_put(const char *folder, const char *part, const char *kind,
                              const void *bytes, size_t count)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/%s-%s-ubyte", folder, part, kind);
    EXPECT(cup__file_write(NULL, path, bytes, count) == CUP_OK);
}

/* Up to SHAPES_MOST of them, as "train" or "t10k". */
static inline void shapes_write(const char *folder, const char *part, int count, uint32_t state)
{
    enum { S = SHAPES_SIDE };
    static uint8_t images[16 + SHAPES_MOST * S * S], labels[8 + SHAPES_MOST];
    const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, S, 0, 0, 0, S};
    memcpy(images, head, 16);
    memcpy(labels, (uint8_t[]){0, 0, 8, 1, 0, 0, 0, (uint8_t)count}, 8);
    for (int n = 0; n < count; n++) {
        uint8_t *x = images + 16 + n * S * S;
        int kind = labels[8 + n] = (uint8_t)(n % 3);
        int at = (int)((state = state * 1664525u + 1013904223u) >> 29);
        for (int i = 0; i < S * S; i++) {
            bool ink = (kind != 1 && i / S == at) || (kind != 0 && i % S == at);
            state = state * 1664525u + 1013904223u;
            x[i] = (uint8_t)((ink ? 180 : 20) + (state >> 27));
        }
    }
    shapes_put(folder, part, "images-idx3", images, (size_t)(16 + count * S * S));
    shapes_put(folder, part, "labels-idx1", labels, (size_t)(8 + count));
}

#endif
