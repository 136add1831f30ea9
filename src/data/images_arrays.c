/* Images that lie in arrays: IDX, CIFAR's binary files and .npy, packed or not. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/images.h"
#include "data/stream.h"
#include "io/npy.h"
#include "tensor/context.h"

#define CIFAR_SIDE 32
#define CIFAR_BYTES (3 * CIFAR_SIDE * CIFAR_SIDE)

/* The file, as it is or packed, that is in the folder; NULL in *out where there is none. */
static cup_status find(cup__error *error, const char *folder, const char *name, char **out)
{
    static const char *const endings[] = {"", ".gz", ".zst"};
    *out = NULL;
    for (size_t i = 0; i < 3; i++) {
        char packed[80];
        snprintf(packed, sizeof packed, "%s%s", name, endings[i]);
        char *path = cup__path_join(folder, packed);
        if (!path)
            return cup__no_memory(error, folder);
        if (cup__file_exists(path)) {
            *out = path;
            return CUP_OK;
        }
        cup__free(path);
    }
    return CUP_OK;
}

/* Exactly so many bytes, behind which the file ends where `last`. */
static cup_status read_all(cup__error *error, cup__stream *s, void *to, size_t count, bool last)
{
    size_t got, more = 0;
    char byte;
    CUP_TRY(cup__stream_read(error, s, to, count, &got));
    if (got < count)
        return cup__fail(error, CUP_FORMAT,
                         "%s ends before all that its header names; copy it again", s->file.path);
    if (last)
        CUP_TRY(cup__stream_read(error, s, &byte, 1, &more));
    if (more)
        return cup__fail(error, CUP_FORMAT, "%s goes on behind all that its header names",
                         s->file.path);
    return CUP_OK;
}

static int64_t big_endian(const uint8_t *b)
{
    return (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

/* IDX: two bytes of 0, 8 for u8, the number of dimensions, and each in 32 bits. */
static cup_status read_idx_header(cup__error *error, cup__stream *s, int least, int most,
                                  int64_t size[4])
{
    uint8_t head[20];
    CUP_TRY(read_all(error, s, head, 4, false));
    int ndim = head[3];
    if (head[0] || head[1] || head[2] != 8 || ndim < least || ndim > most)
        return cup__fail(error, CUP_FORMAT, "%s is no IDX file of bytes with %d dimensions",
                         s->file.path, least);
    CUP_TRY(read_all(error, s, head + 4, (size_t)ndim * 4, false));
    for (int i = 0; i < ndim; i++)
        size[i] = big_endian(head + 4 + 4 * i);
    return CUP_OK;
}

static cup_status read_idx_images(cup__error *error, const char *path,
                                  const cup_images_options *options, cup_images *out)
{
    cup__stream s;
    int64_t size[4] = {0, 0, 0, 1};
    cup_status status = cup__stream_open(error, path, &s);
    if (status == CUP_OK)
        status = read_idx_header(error, &s, 3, 4, size);
    if (status == CUP_OK)
        status = cup__images_size_check(error, path, size);
    if (status == CUP_OK) {
        out->count = size[0];
        out->height = size[1];
        out->width = size[2];
        out->channels = size[3];
        status = cup__images_room(error, path, options, out);
    }
    if (status == CUP_OK)
        status = read_all(error, &s, out->pixels,
                          (size_t)(size[0] * size[1] * size[2] * size[3]), true);
    cup__stream_close(&s);
    return status;
}

/* Labels of one byte, to be counted against the images. */
static cup_status take_labels(cup__error *error, const char *path, const uint8_t *bytes,
                              int64_t count, cup_images *out)
{
    if (count != out->count)
        return cup__fail(error, CUP_FORMAT, "%s has %lld classes for %lld images", path,
                         (long long)count, (long long)out->count);
    out->labels = cup__malloc((size_t)count * sizeof *out->labels);
    if (!out->labels)
        return cup__no_memory(error, path);
    for (int64_t i = 0; i < count; i++)
        out->labels[i] = bytes[i];
    return CUP_OK;
}

static cup_status read_idx_labels(cup__error *error, const char *path, cup_images *out)
{
    cup__stream s;
    int64_t size[4] = {0};
    uint8_t *bytes = cup__malloc((size_t)out->count);
    cup_status status = cup__stream_open(error, path, &s);
    if (status == CUP_OK)
        status = read_idx_header(error, &s, 1, 1, size);
    if (status == CUP_OK && size[0] == out->count)
        status = bytes ? read_all(error, &s, bytes, (size_t)size[0], true)
                       : cup__no_memory(error, path);
    if (status == CUP_OK)
        status = take_labels(error, path, bytes, size[0], out);
    cup__stream_close(&s);
    cup__free(bytes);
    return status;
}

/* CIFAR: a byte of class, or two of which the second is the finer, then planes of 32 x 32. */
static cup_status read_cifar_file(cup__error *error, const char *path, int label_bytes,
                                  const cup_images_options *options, cup_images *out)
{
    enum { MOST = 100000 };
    int64_t before = out->count;
    size_t row = (size_t)label_bytes + CIFAR_BYTES, got = 0;
    uint8_t *bytes = cup__malloc(MOST * row);
    cup__stream s;
    cup_status status = cup__stream_open(error, path, &s);
    if (status == CUP_OK)
        status = bytes ? cup__stream_read(error, &s, bytes, MOST * row, &got)
                       : cup__no_memory(error, path);
    cup__stream_close(&s);
    if (status == CUP_OK && (got == 0 || got % row || got == MOST * row))
        status = cup__fail(error, CUP_FORMAT,
                           "%s does not hold whole images of CIFAR, fewer than %d; copy it again",
                           path, MOST);
    out->count += (int64_t)(got / row);
    int64_t all = out->count * CIFAR_BYTES;
    uint8_t *pixels = NULL;
    int64_t *labels = NULL;
    if (status == CUP_OK && options->most_bytes && all > options->most_bytes)
        status = cup__fail(error, CUP_MEMORY, "%s: its images take more than %lld bytes", path,
                           (long long)options->most_bytes);
    if (status == CUP_OK) {
        pixels = cup__realloc(out->pixels, (size_t)all, 1);
        out->pixels = pixels ? pixels : out->pixels;
        labels = cup__realloc(out->labels, (size_t)out->count, sizeof *labels);
        out->labels = labels ? labels : out->labels;
        status = pixels && labels ? CUP_OK : cup__no_memory(error, path);
    }
    for (int64_t i = before; i < out->count && status == CUP_OK; i++) {
        const uint8_t *from = bytes + (size_t)(i - before) * row;
        labels[i] = from[label_bytes - 1];
        for (int k = 0; k < CIFAR_BYTES; k++)
            pixels[i * CIFAR_BYTES + k] =
                from[label_bytes + k % 3 * CIFAR_SIDE * CIFAR_SIDE + k / 3];
    }
    cup__free(bytes);
    return status;
}

static cup_status read_cifar(cup__error *error, const char *folder, bool train, bool hundred,
                             const cup_images_options *options, cup_images *out)
{
    int files = train && !hundred ? 5 : 1;
    out->height = out->width = CIFAR_SIDE;
    out->channels = 3;
    for (int i = 1; i <= files; i++) {
        char name[32], *path;
        if (hundred)
            snprintf(name, sizeof name, "%s.bin", train ? "train" : "test");
        else if (train)
            snprintf(name, sizeof name, "data_batch_%d.bin", i);
        else
            snprintf(name, sizeof name, "test_batch.bin");
        CUP_TRY(find(error, folder, name, &path));
        if (!path)
            return cup__fail(error, CUP_IO, "%s has no %s", folder, name);
        cup_status status = read_cifar_file(error, path, hundred ? 2 : 1, options, out);
        if (status == CUP_OK && i == 1)
            status = cup__names_add(error, &out->paths, path);
        cup__free(path);
        CUP_TRY(status);
    }
    return CUP_OK;
}

static cup_status read_npy_images(cup__error *error, const char *path,
                                  const cup_images_options *options, cup_images *out)
{
    cup__npy npy;
    CUP_TRY(cup__npy_open(error, path, &npy));
    cup_status status = CUP_OK;
    if (npy.dtype != CUP_U8 || npy.ndim < 3 || npy.ndim > 4)
        status = cup__fail(error, CUP_FORMAT,
                           "%s is no array [N,H,W] or [N,H,W,C] of u8, as images are", path);
    if (status == CUP_OK) {
        out->count = npy.shape[0];
        out->height = npy.shape[1];
        out->width = npy.shape[2];
        out->channels = npy.ndim == 4 ? npy.shape[3] : 1;
        status = cup__images_room(error, path, options, out);
    }
    if (status == CUP_OK)
        status = cup__file_read_at(error, &npy.file, npy.begin, out->pixels, (size_t)npy.bytes);
    cup__npy_close(&npy);
    return status;
}

static int64_t whole(const void *bytes, cup_dtype dtype, int64_t i)
{
    return dtype == CUP_I64   ? ((const int64_t *)bytes)[i]
           : dtype == CUP_I32 ? ((const int32_t *)bytes)[i]
                              : ((const uint8_t *)bytes)[i];
}

static cup_status read_npy_labels(cup__error *error, const char *path, cup_images *out)
{
    cup__npy npy;
    CUP_TRY(cup__npy_open(error, path, &npy));
    cup_status status = CUP_OK;
    bool usable = npy.dtype == CUP_I64 || npy.dtype == CUP_I32 || npy.dtype == CUP_U8;
    if (npy.ndim != 1 || npy.shape[0] != out->count || !usable)
        status = cup__fail(error, CUP_FORMAT,
                           "%s is no array of u8, i32 or i64 with a class for each of %lld images",
                           path, (long long)out->count);
    void *bytes = status == CUP_OK ? cup__malloc((size_t)npy.bytes) : NULL;
    out->labels = cup__malloc((size_t)out->count * sizeof *out->labels);
    if (status == CUP_OK && (!bytes || !out->labels))
        status = cup__no_memory(error, path);
    if (status == CUP_OK)
        status = cup__file_read_at(error, &npy.file, npy.begin, bytes, (size_t)npy.bytes);
    for (int64_t i = 0; i < out->count && status == CUP_OK; i++)
        out->labels[i] = whole(bytes, npy.dtype, i);
    cup__free(bytes);
    cup__npy_close(&npy);
    return status;
}

/* Names of what one file holds of images and one of classes, for training and validation. */
static const struct layout {
    const char *images[2], *labels[2];
    bool is_npy;
} layouts[] = {
    {{"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"},
     {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"},
     false},
    {{"train-images.idx3-ubyte", "t10k-images.idx3-ubyte"},
     {"train-labels.idx1-ubyte", "t10k-labels.idx1-ubyte"},
     false},
    {{"train_images.npy", "test_images.npy"}, {"train_labels.npy", "test_labels.npy"}, true}};

static cup_status read_pair(cup__error *error, const char *folder, const struct layout *l,
                            cup_split split, const cup_images_options *options, cup_images *out)
{
    char *images, *labels = NULL;
    bool train = split == CUP_SPLIT_TRAIN;
    CUP_TRY(find(error, folder, l->images[!train], &images));
    cup_status status = find(error, folder, l->labels[!train], &labels);
    if (status == CUP_OK && (!images || !labels))
        status = cup__fail(error, CUP_IO, "%s has no %s", folder,
                           images ? l->labels[!train] : l->images[!train]);
    if (status == CUP_OK)
        status = l->is_npy ? read_npy_images(error, images, options, out)
                           : read_idx_images(error, images, options, out);
    if (status == CUP_OK)
        status = l->is_npy ? read_npy_labels(error, labels, out)
                           : read_idx_labels(error, labels, out);
    if (status == CUP_OK)
        status = cup__names_add(error, &out->paths, images);
    cup__free(images);
    cup__free(labels);
    return status;
}

/* Scales arrays to the size and channels that were asked for. */
static cup_status fit(cup_context *c, const cup_images_options *o, cup_images *out)
{
    cup_images other = *out;
    if (o->height) {
        other.height = o->height;
        other.width = o->width;
    }
    if (o->channels)
        other.channels = o->channels;
    if (other.height == out->height && other.width == out->width &&
        other.channels == out->channels)
        return CUP_OK;
    CUP_TRY(cup__images_room(&c->error, out->paths.name[0], o, &other));
    int64_t bytes = other.height * other.width * other.channels;
    cup_status status = CUP_OK;
    for (int64_t i = 0; i < out->count && status == CUP_OK; i++) {
        const cup__picture from = {
            out->pixels + i * out->height * out->width * out->channels, out->height, out->width,
            out->channels};
        cup__picture to = {other.pixels + i * bytes, other.height, other.width, other.channels};
        status = cup__picture_fit(&c->error, &from, &to);
        if (status == CUP_OK && i % 1024 == 0)
            status = cup__stopped(c);
    }
    cup__free(out->pixels);
    *out = other;
    return status;
}

static cup_status has(cup__error *error, const char *folder, const char *name, bool *out)
{
    char *path;
    CUP_TRY(find(error, folder, name, &path));
    *out = path != NULL;
    cup__free(path);
    return CUP_OK;
}

cup_status cup__images_arrays(cup_context *c, const char *folder, cup_split split,
                              const cup_images_options *options, cup_images *out, bool *found)
{
    cup__error *error = &c->error;
    const char *names = "classes.txt";
    bool train = split == CUP_SPLIT_TRAIN, ten, hundred;
    *found = false;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts && !*found; i++) {
        CUP_TRY(has(error, folder, layouts[i].images[0], found));
        if (*found)
            CUP_TRY(read_pair(error, folder, &layouts[i], split, options, out));
    }
    if (!*found) {
        CUP_TRY(has(error, folder, "data_batch_1.bin", &ten));
        CUP_TRY(has(error, folder, "train.bin", &hundred));
        *found = ten || hundred;
        if (*found)
            CUP_TRY(read_cifar(error, folder, train, !ten, options, out));
        if (*found)
            names = ten ? "batches.meta.txt" : "fine_label_names.txt";
    }
    if (!*found)
        return CUP_OK;
    CUP_TRY(cup__classes_name(error, folder, names, out));
    return fit(c, options, out);
}
