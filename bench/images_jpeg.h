/* A folder of JPEGs with classes, for benchmarks, written by TurboJPEG as the library finds it. */
#ifndef BENCH_IMAGES_JPEG_H
#define BENCH_IMAGES_JPEG_H

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct jpeg_writer {
    void *state;
    int (*compress)(void *, const unsigned char *, int width, int pitch, int height, int format,
                    unsigned char **out, unsigned long *bytes, int sampling, int quality,
                    int flags);
    void (*release)(unsigned char *);
    int side;
    unsigned char *pixels; /* [side, side, 3] */
    double written;        /* bytes */
} jpeg_writer;

static bool jpeg_writer_open(jpeg_writer *w, int side)
{
    const char *named = getenv("CUP_LIBTURBOJPEG");
    void *library = dlopen(named && *named ? named : "libturbojpeg.so.0", RTLD_NOW);
    void *begin = library ? dlsym(library, "tjInitCompress") : NULL;
    *w = (jpeg_writer){.side = side};
    if (!begin)
        return false;
    *(void **)&w->compress = dlsym(library, "tjCompress2");
    *(void **)&w->release = dlsym(library, "tjFree");
    w->state = ((void *(*)(void))begin)();
    w->pixels = malloc((size_t)side * (size_t)side * 3);
    return w->compress && w->release && w->state && w->pixels;
}

/* Smooth shapes with grain, so that a file has about as many bits a pixel as a photograph. */
static void jpeg_paint(jpeg_writer *w, unsigned number)
{
    unsigned state = number * 2654435761u + 1;
    unsigned char *to = w->pixels;
    for (int y = 0; y < w->side; y++)
        for (int x = 0; x < w->side; x++) {
            double wave = sin(x * 0.02 * (1 + number % 7)) + cos(y * 0.03 * (1 + number % 5));
            for (int k = 0; k < 3; k++) {
                state = state * 1664525u + 1013904223u;
                *to++ = (unsigned char)(128 + 45 * wave * (k + 1) / 3 + (state >> 24) * 0.12 - 15);
            }
        }
}

static bool jpeg_write(jpeg_writer *w, const char *path)
{
    enum { RGB = 0, HALVES = 2, QUALITY = 90 };
    unsigned char *out = NULL;
    unsigned long bytes = 0;
    if (w->compress(w->state, w->pixels, w->side, 0, w->side, RGB, &out, &bytes, HALVES, QUALITY,
                    0) != 0)
        return false;
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(out, bytes, 1, f) == 1;
    good = f && fclose(f) == 0 && good;
    w->written += (double)bytes;
    w->release(out);
    return good;
}

/* `count` files of side x side, in a folder for each of `classes`; the bytes of one, on average, or
 * 0 where they cannot be made. */
static double jpeg_folder(const char *folder, int count, int classes, int side)
{
    jpeg_writer w;
    char path[4200];
    bool good = jpeg_writer_open(&w, side);
    for (int i = 0; i < count && good; i++) {
        int length = snprintf(path, sizeof path, "%s/c%03d", folder, i % classes);
        mkdir(path, 0777);
        snprintf(path + length, sizeof path - (size_t)length, "/%d.jpg", i);
        jpeg_paint(&w, (unsigned)i);
        good = jpeg_write(&w, path);
    }
    free(w.pixels);
    return good ? w.written / count : 0;
}

#endif
