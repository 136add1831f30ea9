/* PNG, JPEG and WebP by their own libraries, which are loaded when the first file needs them. Only
 * calls are used that give a failure back: none ends the process or jumps. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/env.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/shared.h"
#include "data/picture.h"

#define MOST_BYTES ((uint64_t)256 << 20) /* of a file */
#define MOST_PIXELS ((int64_t)1 << 26)   /* of an image: 192 MB as bytes */
#define MOST_SIDE 65535

typedef struct kind {
    const char *name, *library, *package;
    cup__env variable;
    bool (*begins)(const uint8_t *bytes, size_t count);
    bool (*bind)(void *handle);
    /* NULL, or what is wrong, written into `words` where it is not a constant. */
    const char *(*decode)(const uint8_t *bytes, size_t count, cup__picture *out, char words[200]);
} kind;

static bool find(void *handle, const char *name, void *call)
{
    void *found = dlsym(handle, name);
    memcpy(call, &found, sizeof found);
    return found != NULL;
}

/* What is wrong where it is not the file. */
static const char lacks_memory[] = "there is no host memory for it";

/* Memory for an image of a size that a file names. */
static const char *make(int64_t height, int64_t width, cup__picture *out)
{
    if (height < 1 || width < 1 || height > MOST_SIDE || width > MOST_SIDE ||
        height > MOST_PIXELS / width)
        return "it is larger than 65535 pixels a side or 67 million in all";
    out->height = height;
    out->width = width;
    out->pixels = cup__malloc((size_t)(height * width * out->channels));
    return out->pixels ? NULL : lacks_memory;
}

/* libpng's simplified interface, of 1.6. */
typedef struct png_state {
    void *opaque;
    uint32_t version, width, height, format, flags, colormap_entries, warning_or_error;
    char message[64];
} png_state;

static struct {
    int (*begin)(png_state *, const void *, size_t);
    int (*finish)(png_state *, const void *background, void *to, int32_t stride, void *colormap);
    void (*end)(png_state *);
} png;

static bool is_png(const uint8_t *bytes, size_t count)
{
    return count >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0;
}

static bool bind_png(void *handle)
{
    return find(handle, "png_image_begin_read_from_memory", &png.begin) &&
           find(handle, "png_image_finish_read", &png.finish) &&
           find(handle, "png_image_free", &png.end);
}

static const char *decode_png(const uint8_t *bytes, size_t count, cup__picture *out,
                              char words[200])
{
    enum { VERSION = 1, COLOR = 2 };
    static const uint8_t white[3] = {255, 255, 255};
    png_state s = {.version = VERSION};
    const char *wrong = NULL;
    bool done = png.begin(&s, bytes, count) != 0;
    if (done)
        wrong = make(s.height, s.width, out);
    s.format = out->channels == 3 ? COLOR : 0;
    if (done && !wrong)
        done = png.finish(&s, white, out->pixels, 0, NULL) != 0;
    if (!done) {
        memcpy(words, s.message, sizeof s.message);
        words[sizeof s.message - 1] = 0;
        wrong = words;
    }
    png.end(&s);
    return wrong;
}

/* TurboJPEG, the part of libjpeg-turbo whose failures come back. */
static struct {
    void *(*begin)(void);
    int (*header)(void *, const uint8_t *, unsigned long, int *width, int *height, int *sampling,
                  int *space);
    int (*decode)(void *, const uint8_t *, unsigned long, uint8_t *, int width, int stride,
                  int height, int format, int flags);
    const char *(*words)(void *);
    int (*end)(void *);
} jpeg;

static bool is_jpeg(const uint8_t *bytes, size_t count)
{
    return count >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0;
}

static bool bind_jpeg(void *handle)
{
    return find(handle, "tjInitDecompress", &jpeg.begin) &&
           find(handle, "tjDecompressHeader3", &jpeg.header) &&
           find(handle, "tjDecompress2", &jpeg.decode) &&
           find(handle, "tjGetErrorStr2", &jpeg.words) && find(handle, "tjDestroy", &jpeg.end);
}

static const char *decode_jpeg(const uint8_t *bytes, size_t count, cup__picture *out,
                               char words[200])
{
    enum { RGB = 0, GREY = 6 };
    int width = 0, height = 0, sampling, space;
    const char *wrong = NULL;
    void *state = jpeg.begin();
    if (!state)
        return lacks_memory;
    bool done = jpeg.header(state, bytes, count, &width, &height, &sampling, &space) == 0;
    if (done)
        wrong = make(height, width, out);
    if (done && !wrong)
        done = jpeg.decode(state, bytes, count, out->pixels, width, 0, height,
                           out->channels == 3 ? RGB : GREY, 0) == 0;
    if (!done) {
        strncpy(words, jpeg.words(state), 199);
        words[199] = 0;
        wrong = words;
    }
    jpeg.end(state);
    return wrong;
}

static struct {
    int (*size)(const uint8_t *, size_t, int *width, int *height);
    uint8_t *(*decode)(const uint8_t *, size_t, uint8_t *to, size_t bytes, int stride);
} webp;

static bool is_webp(const uint8_t *bytes, size_t count)
{
    return count >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0;
}

static bool bind_webp(void *handle)
{
    return find(handle, "WebPGetInfo", &webp.size) &&
           find(handle, "WebPDecodeRGBAInto", &webp.decode);
}

/* Lays four channels upon white, and makes grey of them where one is wanted. */
static void flatten(const uint8_t *from, cup__picture *out)
{
    for (int64_t i = 0; i < out->height * out->width; i++, from += 4) {
        int c[3], alpha = from[3];
        for (int k = 0; k < 3; k++)
            c[k] = (from[k] * alpha + 255 * (255 - alpha) + 127) / 255;
        if (out->channels == 1)
            out->pixels[i] = (uint8_t)((c[0] * 299 + c[1] * 587 + c[2] * 114 + 500) / 1000);
        for (int k = 0; k < 3 && out->channels == 3; k++)
            out->pixels[i * 3 + k] = (uint8_t)c[k];
    }
}

static const char *decode_webp(const uint8_t *bytes, size_t count, cup__picture *out,
                               char words[200])
{
    int width = 0, height = 0;
    (void)words;
    if (!webp.size(bytes, count, &width, &height))
        return "its header is damaged";
    const char *wrong = make(height, width, out);
    if (wrong)
        return wrong;
    size_t room = (size_t)width * (size_t)height * 4;
    uint8_t *four = cup__malloc(room);
    if (!four)
        return lacks_memory;
    bool done = webp.decode(bytes, count, four, room, width * 4) != NULL;
    if (done)
        flatten(four, out);
    cup__free(four);
    return done ? NULL : "the data are damaged";
}

static const kind kinds[] = {
    {"PNG", "libpng16.so.16", "libpng16-16", CUP__ENV_LIBPNG, is_png, bind_png, decode_png},
    {"JPEG", "libturbojpeg.so.0", "libturbojpeg0 or libturbojpeg", CUP__ENV_LIBTURBOJPEG, is_jpeg,
     bind_jpeg, decode_jpeg},
    {"WebP", "libwebp.so.7", "libwebp7", CUP__ENV_LIBWEBP, is_webp, bind_webp, decode_webp}};

#define KINDS (sizeof kinds / sizeof *kinds)

bool cup__picture_named(const char *path)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".webp"};
    const char *dot = strrchr(cup__path_name(path), '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

static cup_status load(cup__error *error, const kind *k, const char *path)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool bound[KINDS];
    const char *named = cup__env_get(k->variable), *library = *named ? named : k->library;
    bool off = strcmp(named, "off") == 0;
    char why[200] = "it is off";
    pthread_mutex_lock(&lock);
    bool *is_bound = &bound[k - kinds];
    if (!*is_bound && !off) {
        void *handle = cup__shared_open(library);
        const char *words = handle ? "it lacks a function that is needed" : dlerror();
        strncpy(why, words ? words : "", sizeof why - 1);
        *is_bound = handle && k->bind(handle);
    }
    bool usable = *is_bound && !off;
    pthread_mutex_unlock(&lock);
    if (usable)
        return CUP_OK;
    return cup__fail(error, CUP_IO,
                     "%s is a %s and needs %s, which cannot be loaded (%s); install it (package "
                     "%s), or name it with %s",
                     path, k->name, k->library, why, k->package, cup__env_name(k->variable));
}

cup_status cup__picture_decode(cup__error *error, const char *path, const void *bytes, size_t count,
                               int64_t channels, cup__picture *out)
{
    char words[200];
    *out = (cup__picture){.channels = channels};
    for (size_t i = 0; i < KINDS; i++) {
        if (!kinds[i].begins(bytes, count))
            continue;
        CUP_TRY(load(error, &kinds[i], path));
        const char *wrong = kinds[i].decode(bytes, count, out, words);
        if (!wrong)
            return CUP_OK;
        cup__free(out->pixels);
        out->pixels = NULL;
        if (wrong == lacks_memory)
            return cup__no_memory(error, path);
        return cup__fail(error, CUP_FORMAT, "%s: this %s cannot be decoded: %s; copy it again",
                         path, kinds[i].name, wrong);
    }
    return cup__fail(error, CUP_FORMAT, "%s is no PNG, JPEG or WebP; convert or remove it", path);
}

cup_status cup__picture_read(cup__error *error, const char *path, int64_t channels,
                             cup__picture *out)
{
    char *bytes;
    size_t count;
    *out = (cup__picture){.channels = channels};
    CUP_TRY(cup__file_read(error, path, MOST_BYTES, &bytes, &count));
    cup_status status = cup__picture_decode(error, path, bytes, count, channels, out);
    cup__free(bytes);
    return status;
}
