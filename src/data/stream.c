#include "data/stream.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/env.h"
#include "base/memory.h"
#include "base/shared.h"

#define PACKED ((size_t)1 << 17)

/* Unpacks from the stream's packed bytes: *used and *made say how much. Not the end of the file. */
typedef struct cup__packing {
    const char *ending, *library, *package;
    cup__env variable;
    bool (*bind)(void *handle);
    void *(*begin)(void);
    void (*end)(void *state);
    /* NULL, or what is wrong. */
    const char *(*unpack)(cup__stream *s, char *to, size_t most, size_t *made);
} packing;

static bool find(void *handle, const char *name, void *call)
{
    void *found = dlsym(handle, name);
    memcpy(call, &found, sizeof found);
    return found != NULL;
}

/* zlib's interface, which has not changed since 1.2. */
typedef struct z_state {
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *internal, *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} z_state;

static struct {
    const char *(*version)(void);
    int (*begin)(z_state *, int bits, const char *version, int size);
    int (*inflate)(z_state *, int flush);
    int (*reset)(z_state *);
    int (*end)(z_state *);
} zlib;

static bool bind_zlib(void *handle)
{
    return find(handle, "zlibVersion", &zlib.version) &&
           find(handle, "inflateInit2_", &zlib.begin) && find(handle, "inflate", &zlib.inflate) &&
           find(handle, "inflateReset", &zlib.reset) && find(handle, "inflateEnd", &zlib.end);
}

static void *begin_gzip(void)
{
    enum { BITS = 15, ONLY_GZIP = 16 };
    z_state *z = cup__calloc(1, sizeof *z);
    if (z && zlib.begin(z, BITS + ONLY_GZIP, zlib.version(), (int)sizeof *z) == 0)
        return z;
    cup__free(z);
    return NULL;
}

static void end_gzip(void *state)
{
    zlib.end(state);
    cup__free(state);
}

static const char *unpack_gzip(cup__stream *s, char *to, size_t most, size_t *made)
{
    enum { NO_FLUSH = 0, DONE = 0, STREAM_END = 1, NO_PROGRESS = -5 };
    z_state *z = s->state;
    unsigned room = most < (1u << 30) ? (unsigned)most : 1u << 30;
    z->next_in = (const unsigned char *)s->packed + s->at;
    z->avail_in = (unsigned)(s->end - s->at);
    z->next_out = (unsigned char *)to;
    z->avail_out = room;
    s->within = true;
    int result = zlib.inflate(z, NO_FLUSH);
    s->at = s->end - z->avail_in;
    *made = room - z->avail_out;
    if (result == STREAM_END) {
        s->within = false;
        zlib.reset(z);
    } else if (result != DONE && result != NO_PROGRESS) {
        return z->msg ? z->msg : "the data are damaged";
    }
    return NULL;
}

/* zstd's, stable since 1.0. */
typedef struct z_bytes {
    void *bytes;
    size_t size, at;
} z_bytes;

static struct {
    void *(*begin)(void);
    size_t (*end)(void *);
    size_t (*unpack)(void *, z_bytes *out, z_bytes *in);
    unsigned (*is_error)(size_t);
    const char *(*words)(size_t);
} zstd;

static bool bind_zstd(void *handle)
{
    return find(handle, "ZSTD_createDStream", &zstd.begin) &&
           find(handle, "ZSTD_freeDStream", &zstd.end) &&
           find(handle, "ZSTD_decompressStream", &zstd.unpack) &&
           find(handle, "ZSTD_isError", &zstd.is_error) &&
           find(handle, "ZSTD_getErrorName", &zstd.words);
}

static void *begin_zstd(void)
{
    return zstd.begin();
}

static void end_zstd(void *state)
{
    zstd.end(state);
}

static const char *unpack_zstd(cup__stream *s, char *to, size_t most, size_t *made)
{
    z_bytes out = {to, most, 0}, in = {s->packed, s->end, s->at};
    size_t result = zstd.unpack(s->state, &out, &in);
    s->at = in.at;
    *made = out.at;
    if (zstd.is_error(result))
        return zstd.words(result);
    s->within = result != 0;
    return NULL;
}

static const packing packings[] = {
    {".gz", "libz.so.1", "zlib1g", CUP__ENV_LIBZ, bind_zlib, begin_gzip, end_gzip, unpack_gzip},
    {".zst", "libzstd.so.1", "libzstd1", CUP__ENV_LIBZSTD, bind_zstd, begin_zstd, end_zstd,
     unpack_zstd}};

#define PACKINGS (sizeof packings / sizeof *packings)

static const packing *packing_of(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < PACKINGS; i++) {
        size_t ending = strlen(packings[i].ending);
        if (length > ending && strcmp(name + length - ending, packings[i].ending) == 0)
            return &packings[i];
    }
    return NULL;
}

size_t cup__stream_name(const char *name)
{
    const packing *p = packing_of(name);
    return strlen(name) - (p ? strlen(p->ending) : 0);
}

/* A library is loaded when the first file needs it, and stays. */
static cup_status load(cup__error *error, const packing *p, const char *path)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *handles[PACKINGS];
    const char *named = cup__env_get(p->variable), *library = *named ? named : p->library;
    void **handle = &handles[p - packings];
    const char *why = "";
    bool bound = false;
    pthread_mutex_lock(&lock);
    if (!*handle && strcmp(named, "off") != 0) {
        *handle = cup__shared_open(library);
        why = *handle ? "it lacks a function that is needed" : dlerror();
        if (*handle && !p->bind(*handle))
            *handle = NULL;
    }
    bound = *handle && strcmp(named, "off") != 0;
    pthread_mutex_unlock(&lock);
    if (bound)
        return CUP_OK;
    return cup__fail(error, CUP_IO,
                     "%s needs %s, which cannot be loaded (%.200s); install it (package %s), name "
                     "it with %s, or unpack the file",
                     path, p->library, *why ? why : "it is off", p->package,
                     cup__env_name(p->variable));
}

cup_status cup__stream_open(cup__error *error, const char *path, cup__stream *out)
{
    *out = (cup__stream){.file.handle = -1};
    CUP_TRY(cup__file_open(error, path, &out->file));
    const packing *p = packing_of(path);
    if (!p)
        return CUP_OK;
    CUP_TRY(load(error, p, path));
    out->packed = cup__malloc(PACKED);
    out->state = out->packed ? p->begin() : NULL;
    if (!out->state)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory for unpacking it", path);
    out->packing = p;
    return CUP_OK;
}

void cup__stream_close(cup__stream *s)
{
    if (s->state)
        s->packing->end(s->state);
    cup__free(s->packed);
    cup__file_close(&s->file);
    *s = (cup__stream){.file.handle = -1};
}

/* The next bytes of the file itself. */
static cup_status read_file(cup__error *error, cup__stream *s, void *to, size_t most, size_t *got)
{
    uint64_t left = s->file.size - s->read;
    *got = left < most ? (size_t)left : most;
    CUP_TRY(cup__file_read_at(error, &s->file, s->read, to, *got));
    s->read += *got;
    return CUP_OK;
}

cup_status cup__stream_read(cup__error *error, cup__stream *s, void *to, size_t most, size_t *got)
{
    if (!s->packing)
        return read_file(error, s, to, most, got);
    *got = 0;
    while (*got < most) {
        size_t made = 0, before = s->at;
        if (s->at == s->end) {
            s->at = 0;
            CUP_TRY(read_file(error, s, s->packed, PACKED, &s->end));
            before = 0;
        }
        bool ended = s->end == 0;
        if (ended && !s->within)
            return CUP_OK;
        const char *wrong = s->packing->unpack(s, (char *)to + *got, most - *got, &made);
        if (wrong)
            return cup__fail(error, CUP_FORMAT,
                             "%s cannot be unpacked before byte %llu of it: %.200s; copy it again",
                             s->file.path, (unsigned long long)s->read, wrong);
        *got += made;
        if (made == 0 && s->at == before && (ended || s->at < s->end))
            return cup__fail(error, CUP_FORMAT,
                             "%s ends in the middle of what is packed in it; copy it again",
                             s->file.path);
    }
    return CUP_OK;
}
