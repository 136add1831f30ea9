#include "data/images.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/options.h"
#include "tensor/context.h"

#define MOST_BYTES ((int64_t)8 << 30)
#define MOST_CLASSES 100000
#define MOST_LOOKED_AT 1024 /* images decoded as needed, for their mean */

cup_status cup__names_add(cup__error *error, cup__names *names, const char *name)
{
    char *copy = cup__strdup(name);
    if (!copy || !cup__grow(&names->name, &names->capacity, names->count, sizeof *names->name)) {
        cup__free(copy);
        return cup__no_memory(error, "the names of images and classes");
    }
    names->name[names->count++] = copy;
    return CUP_OK;
}

cup_status cup__class_number(cup__error *error, cup__names *classes, const char *name,
                             int64_t *out)
{
    for (size_t i = 0; i < classes->count; i++)
        if (strcmp(classes->name[i], name) == 0) {
            *out = (int64_t)i;
            return CUP_OK;
        }
    *out = (int64_t)classes->count;
    return cup__names_add(error, classes, name);
}

static cup_status read_lines(cup__error *error, const char *path, cup__names *names)
{
    char *text, *rest = NULL;
    CUP_TRY(cup__file_read(error, path, 1 << 24, &text, NULL));
    cup_status status = CUP_OK;
    for (char *line = strtok_r(text, "\r\n", &rest); line && status == CUP_OK;
         line = strtok_r(NULL, "\r\n", &rest))
        status = cup__names_add(error, names, line);
    cup__free(text);
    return status;
}

cup_status cup__classes_name(cup__error *error, const char *folder, const char *file,
                             cup_images *out)
{
    int64_t most = -1;
    char number[24];
    for (int64_t i = 0; i < out->count; i++)
        most = out->labels[i] > most ? out->labels[i] : most;
    if (most >= MOST_CLASSES)
        return cup__fail(error, CUP_FORMAT, "%s: an image has the class %lld, and %d are the most",
                         folder, (long long)most, MOST_CLASSES);
    char *path = cup__path_join(folder, file);
    if (!path)
        return cup__no_memory(error, folder);
    cup_status status = CUP_OK;
    if (cup__file_exists(path))
        status = read_lines(error, path, &out->classes);
    if (status == CUP_OK && out->classes.count && (int64_t)out->classes.count <= most)
        status = cup__fail(error, CUP_FORMAT,
                           "%s names %zu classes, and an image has number %lld, counted from 0",
                           path, out->classes.count, (long long)most);
    cup__free(path);
    bool named = out->classes.count > 0;
    for (int64_t i = 0; i <= most && !named && status == CUP_OK; i++) {
        snprintf(number, sizeof number, "%lld", (long long)i);
        status = cup__names_add(error, &out->classes, number);
    }
    return status;
}

cup_status cup__images_size_check(cup__error *error, const char *path, const int64_t size[4])
{
    size_t bytes = 1;
    for (int i = 0; i < 4; i++)
        if (size[i] < 1 || !cup__multiply(bytes, (size_t)size[i], &bytes) || bytes > INT64_MAX / 16)
            return cup__fail(error, CUP_FORMAT,
                             "%s says that it holds %lld images of %lld x %lld pixels and %lld "
                             "channels, which cannot be",
                             path, (long long)size[0], (long long)size[1], (long long)size[2],
                             (long long)size[3]);
    if (size[3] == 1 || size[3] == 3)
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT, "%s has %lld channels; only 1 and 3 can be used", path,
                     (long long)size[3]);
}

cup_status cup__images_room(cup__error *error, const char *path, const cup_images_options *options,
                            cup_images *out)
{
    const int64_t size[] = {out->count, out->height, out->width, out->channels};
    int64_t most = options->most_bytes ? options->most_bytes : MOST_BYTES;
    CUP_TRY(cup__images_size_check(error, path, size));
    int64_t bytes = out->count * out->height * out->width * out->channels;
    if (bytes > most)
        return cup__fail(error, CUP_MEMORY,
                         "%s: %lld images of %lld x %lld pixels take %lld bytes, and %lld are the "
                         "most; use smaller ones (height and width), or fewer",
                         path, (long long)out->count, (long long)out->height,
                         (long long)out->width, (long long)bytes, (long long)most);
    out->pixels = cup__malloc((size_t)bytes);
    return out->pixels ? CUP_OK : cup__no_memory(error, path);
}

static cup_status check_labels(cup__error *error, const char *path, const cup_images *out)
{
    for (int64_t i = 0; i < out->count; i++)
        if (out->labels[i] < 0)
            return cup__fail(error, CUP_FORMAT, "%s: image %lld has the class %lld", path,
                             (long long)i, (long long)out->labels[i]);
    return out->count ? CUP_OK
                      : cup__fail(error, CUP_FORMAT, "%s holds no images of this part", path);
}

/* A network cannot learn a class that it never sees; in folders such a one is refused, too. */
static cup_status check_all_there(cup__error *error, const char *path, const cup_images *out)
{
    size_t classes = out->classes.count, missing = 0;
    bool *seen = cup__calloc(classes + 1, sizeof *seen);
    if (!seen)
        return cup__no_memory(error, path);
    for (int64_t i = 0; i < out->count; i++)
        seen[out->labels[i]] = true;
    while (missing < classes && seen[missing])
        missing++;
    cup__free(seen);
    if (missing == classes)
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT,
                     "%s: no image for training has the class %zu, \"%s\"; add some, or leave the "
                     "class out and number the others from 0 without a gap",
                     path, missing, out->classes.name[missing]);
}

static void make_hash(cup_images *out)
{
    size_t pixels = (size_t)(out->count * out->height * out->width * out->channels);
    cup__hash hash;
    char text[CUP__HASH_TEXT];
    cup__hash_begin(&hash);
    if (out->pixels)
        cup__hash_add(&hash, out->pixels, pixels);
    for (size_t i = 0; i < out->paths.count && !out->pixels; i++)
        cup__hash_add(&hash, out->paths.name[i], strlen(out->paths.name[i]) + 1);
    cup__hash_add(&hash, out->labels, (size_t)out->count * sizeof *out->labels);
    for (size_t i = 0; i < out->classes.count; i++)
        cup__hash_add(&hash, out->classes.name[i], strlen(out->classes.name[i]) + 1);
    cup__hash_text(&hash, text);
    out->hash = cup__hash_bytes(text, sizeof text);
}

static cup_status load(cup_context *c, const char *path, cup_split split,
                       const cup_images_options *o, cup_images *out)
{
    size_t length = strlen(path);
    bool found = false;
    if (!cup__folder_exists(path) && length > 4 && strcmp(path + length - 4, ".csv") == 0)
        CUP_TRY(cup__images_table(c, path, split, o, out));
    else if (!cup__folder_exists(path))
        return cup__fail(&c->error, CUP_IO, "%s is no folder of images and no .csv file", path);
    else
        CUP_TRY(cup__images_arrays(c, path, split, o, out, &found));
    if (!found && cup__folder_exists(path))
        CUP_TRY(cup__images_folder(c, path, split, o, out));
    CUP_TRY(check_labels(&c->error, path, out));
    if (found && split == CUP_SPLIT_TRAIN)
        CUP_TRY(check_all_there(&c->error, path, out));
    make_hash(out);
    return CUP_OK;
}

static cup_status check(cup_context *c, const char *call, const cup_images_options *given,
                        cup_images_options *o)
{
    CUP_TRY(cup__options_take(&c->error, call, o, sizeof *o, given));
    if (o->height < 0 || o->width < 0 || !o->height != !o->width || o->height > 65535 ||
        o->width > 65535)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "%s: height %lld and width %lld; give both, from 1 to 65535, or neither",
                         call, (long long)o->height, (long long)o->width);
    if (o->channels != 0 && o->channels != 1 && o->channels != 3)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: %lld channels; give 1, 3, or 0 for either",
                         call, (long long)o->channels);
    return CUP_OK;
}

static cup_images *begin(cup_context *c)
{
    cup_images *images = cup__calloc(1, sizeof *images);
    if (!images)
        cup__no_memory(&c->error, "images");
    return images;
}

cup_images *cup_images_load(cup_context *c, const char *path, cup_split split,
                            const cup_images_options *options)
{
    cup_images_options o;
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!path || !*path || (split != CUP_SPLIT_TRAIN && split != CUP_SPLIT_VALIDATION)) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "cup_images_load: it needs a path, and a part, for training or validation");
        return NULL;
    }
    if (check(c, "cup_images_load", options, &o) != CUP_OK)
        return NULL;
    cup_images *images = begin(c);
    if (!images || load(c, path, split, &o, images) == CUP_OK)
        return images;
    cup_images_free(images);
    return NULL;
}

static cup_status open_files(cup_context *c, const char *const *paths, int count,
                             const cup_images_options *o, cup_images *out)
{
    for (int i = 0; i < count; i++)
        CUP_TRY(paths[i] && *paths[i]
                    ? cup__names_add(&c->error, &out->paths, paths[i])
                    : cup__fail(&c->error, CUP_ARGUMENT, "the path of an image is empty"));
    out->labels = cup__malloc((size_t)count * sizeof *out->labels);
    if (!out->labels)
        return cup__no_memory(&c->error, "images");
    for (int i = 0; i < count; i++)
        out->labels[i] = -1;
    out->count = count;
    CUP_TRY(cup__images_decode(c, o, out));
    make_hash(out);
    return CUP_OK;
}

cup_images *cup_images_open(cup_context *c, const char *const *paths, int count,
                            const cup_images_options *options)
{
    cup_images_options o;
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (check(c, "cup_images_open", options, &o) != CUP_OK)
        return NULL;
    if (!paths || count < 1 || !o.height) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "cup_images_open: it needs at least one path, and height and width");
        return NULL;
    }
    cup_images *images = begin(c);
    if (!images || open_files(c, paths, count, &o, images) == CUP_OK)
        return images;
    cup_images_free(images);
    return NULL;
}

void cup_images_free(cup_images *images)
{
    if (!images)
        return;
    cup__names_free(&images->classes);
    cup__names_free(&images->paths);
    cup__free(images->pixels);
    cup__free(images->labels);
    cup__free(images);
}

int64_t cup_images_count(const cup_images *images)
{
    return images ? images->count : 0;
}

int64_t cup_images_skipped(const cup_images *images)
{
    return images ? images->skipped : 0;
}

int64_t cup_images_height(const cup_images *images)
{
    return images ? images->height : 0;
}

int64_t cup_images_width(const cup_images *images)
{
    return images ? images->width : 0;
}

int64_t cup_images_channels(const cup_images *images)
{
    return images ? images->channels : 0;
}

int64_t cup_images_classes(const cup_images *images)
{
    return images ? (int64_t)images->classes.count : 0;
}

const char *cup_images_class(const cup_images *images, int64_t index)
{
    return index >= 0 && index < cup_images_classes(images) ? images->classes.name[index] : NULL;
}

const char *cup_images_path(const cup_images *images, int64_t index)
{
    if (index < 0 || index >= cup_images_count(images))
        return NULL;
    return images->paths.name[images->paths.count == 1 ? 0 : index];
}

const uint8_t *cup_images_pixels(const cup_images *images)
{
    return images ? images->pixels : NULL;
}

const int64_t *cup_images_labels(const cup_images *images)
{
    return images ? images->labels : NULL;
}

uint64_t cup_images_hash(const cup_images *images)
{
    return images ? images->hash : 0;
}

cup_status cup_images_statistics(cup_context *c, const cup_images *images, double *mean,
                                 double *deviation)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!images || !mean || !deviation)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_images_statistics: the images or a place for a result are NULL");
    int64_t bytes = images->height * images->width * images->channels, all = images->count;
    int64_t some = images->pixels || all < MOST_LOOKED_AT ? all : MOST_LOOKED_AT;
    uint64_t sum[3] = {0}, squares[3] = {0};
    uint8_t *room = cup__malloc((size_t)bytes);
    cup_status status = room ? CUP_OK : cup__no_memory(&c->error, "images");
    for (int64_t i = 0; i < some && status == CUP_OK; i++) {
        const uint8_t *x;
        status = cup__images_get(&c->error, images, i * all / some, room, &x);
        for (int64_t k = 0; k < images->channels && status == CUP_OK; k++)
            for (int64_t p = k; p < bytes; p += images->channels) {
                sum[k] += x[p];
                squares[k] += (uint64_t)x[p] * x[p];
            }
    }
    cup__free(room);
    CUP_TRY(status);
    double pixels = (double)some * (double)(images->height * images->width);
    for (int64_t k = 0; k < images->channels; k++) {
        double m = (double)sum[k] / pixels, variance = (double)squares[k] / pixels - m * m;
        mean[k] = m / 255;
        deviation[k] = variance > 0 ? sqrt(variance) / 255 : 1;
    }
    return CUP_OK;
}
