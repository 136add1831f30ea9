#include "cuda/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

#define FORMAT 1
#define MOST_BYTES ((uint64_t)256 << 20)
#define ENDING ".cubin"
#define OLD_SECONDS 3600 /* after which a temporary file is one that was left behind */

typedef struct head {
    char magic[16];
    uint32_t format, words; /* bytes of the description */
    uint64_t code;          /* bytes of the code */
    uint64_t check;         /* of description and code */
    cup__key key;
} head;

static const char magic[16] = "cupola kernel\n";

cup_status cup__code_encode(cup__error *error, const cup__code_name *name, const cup__code *code,
                            cup__text *out)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    cup__text words = {0};
    cup__text_add(&words, "\nfile: %s\nknobs: %s\narch: %s\ncompiler: NVRTC %d.%d\ndate: %s\n",
                  name->file, name->knobs, name->arch, name->compiler / 1000,
                  name->compiler % 1000 / 10, date);
    head h = {.format = FORMAT, .words = (uint32_t)words.length, .code = code->size,
              .key = name->key};
    memcpy(h.magic, magic, sizeof magic);
    cup__text_append(out, &h, sizeof h);
    cup__text_append(out, words.bytes, words.length);
    cup__text_append(out, code->bytes, code->size);
    bool failed = words.failed || out->failed;
    cup__text_free(&words);
    if (failed)
        return cup__fail(error, CUP_MEMORY, "out of host memory for a compiled kernel");
    h.check = XXH3_64bits(out->bytes + sizeof h, out->length - sizeof h);
    memcpy(out->bytes, &h, sizeof h);
    return CUP_OK;
}

bool cup__code_decode(const char *bytes, size_t size, const cup__key *key, cup__code *out)
{
    head h;
    if (size < sizeof h)
        return false;
    memcpy(&h, bytes, sizeof h);
    size_t rest = size - sizeof h;
    if (memcmp(h.magic, magic, sizeof magic) || h.format != FORMAT || h.words > rest ||
        h.code != rest - h.words || h.code == 0)
        return false;
    if (key && (h.key.low != key->low || h.key.high != key->high))
        return false;
    if (h.check != XXH3_64bits(bytes + sizeof h, rest))
        return false;
    out->bytes = cup__malloc((size_t)h.code);
    out->size = (size_t)h.code;
    if (out->bytes)
        memcpy(out->bytes, bytes + sizeof h + h.words, out->size);
    return out->bytes;
}

cup_status cup__cache_folder(cup__error *error, char **out)
{
    const char *wish = cup__env_get(CUP__ENV_CACHE);
    *out = NULL;
    if (!strcmp(wish, "off"))
        return CUP_OK;
    if (!*wish)
        return cup__user_folder_find(error, CUP__CACHE_FOLDER, out);
    *out = cup__strdup(wish);
    return *out ? CUP_OK : cup__fail(error, CUP_MEMORY, "out of host memory for %s", wish);
}

/* "gelu.sm_90a.0123...": the part of a file's name that does not depend on the compiler. */
static void add_stem(cup__text *text, const cup__code_name *name)
{
    size_t length = strcspn(name->file, ".");
    cup__text_add(text, "%.*s.%s.%016llx%016llx.", (int)length, name->file, name->arch,
                  (unsigned long long)name->key.high, (unsigned long long)name->key.low);
}

static char *file_path(const char *folder, const cup__code_name *name)
{
    cup__text path = {0};
    cup__text_add(&path, "%s/", folder);
    add_stem(&path, name);
    cup__text_add(&path, "%d" ENDING, name->compiler);
    if (path.failed)
        cup__text_free(&path);
    return path.bytes;
}

static bool read_file(const char *path, const cup__key *key, cup__code *out)
{
    cup__error error = {0};
    char *bytes;
    size_t size;
    if (!cup__file_exists(path) ||
        cup__file_read(&error, path, MOST_BYTES, &bytes, &size) != CUP_OK)
        return false;
    bool good = cup__code_decode(bytes, size, key, out);
    cup__free(bytes);
    if (good) {
        /* The order in which files go is that of last use, kept as the time of change: that of
         * access moves when a list is made. A read-only folder has none. */
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
        utimensat(AT_FDCWD, path, times, 0);
    } else {
        cup__log(CUP__INFO, "%s is damaged and will be made again", path);
        cup__file_remove(NULL, path);
    }
    return good;
}

/* Without a compiler, code from any version of it will do. */
static bool read_any(const char *folder, const cup__code_name *name, cup__code *out)
{
    cup__names names;
    cup__text stem = {0};
    bool found = false;
    add_stem(&stem, name);
    if (!stem.failed && cup__folder_list(NULL, folder, &names) == CUP_OK) {
        for (size_t i = names.count; i-- > 0 && !found;) {
            if (strncmp(names.name[i], stem.bytes, stem.length))
                continue;
            char *path = cup__path_join(folder, names.name[i]);
            found = path && strstr(names.name[i], ENDING) && read_file(path, &name->key, out);
            cup__free(path);
        }
        cup__names_free(&names);
    }
    cup__text_free(&stem);
    return found;
}

bool cup__cache_read(const cup__code_name *name, cup__code *out)
{
    char *folder;
    if (cup__cache_folder(NULL, &folder) != CUP_OK || !folder)
        return false;
    bool found = false;
    char *path = name->compiler ? file_path(folder, name) : NULL;
    if (path)
        found = read_file(path, &name->key, out);
    else if (!name->compiler)
        found = read_any(folder, name, out);
    cup__free(path);
    cup__free(folder);
    return found;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* Whether a file begins as ours do; others of that ending are not ours to count or remove. */
static bool is_ours(const char *path)
{
    cup__file file;
    char begin[sizeof magic];
    if (cup__file_open(NULL, path, &file) != CUP_OK)
        return false;
    bool ours = cup__file_read_at(NULL, &file, 0, begin, sizeof begin) == CUP_OK &&
                !memcmp(begin, magic, sizeof magic);
    cup__file_close(&file);
    return ours;
}

/* Adds a file when it is one of ours; false when there is no memory. */
static bool add_item(cup__cached_list *list, const char *folder, const char *name)
{
    struct stat status;
    if (!cup__grow(&list->items, &list->capacity, list->count, sizeof *list->items))
        return false;
    char *path = cup__path_join(folder, name);
    if (!path || stat(path, &status) || !is_ours(path)) {
        cup__free(path);
        return path;
    }
    list->items[list->count++] =
        (cup__cached){.path = path, .bytes = status.st_size, .used = status.st_mtime};
    return true;
}

/* The compiled kernels of a folder, sizes and times only; also removes what writers that were
 * killed left behind. */
static cup_status scan(cup__error *error, const char *folder, cup__cached_list *out)
{
    *out = (cup__cached_list){0};
    struct stat there;
    if (stat(folder, &there) && errno == ENOENT)
        return CUP_OK;
    cup__names names;
    CUP_TRY(cup__folder_list(error, folder, &names));
    bool good = true;
    for (size_t i = 0; i < names.count && good; i++) {
        if (ends_with(names.name[i], ENDING)) {
            good = add_item(out, folder, names.name[i]);
        } else if (strstr(names.name[i], ENDING ".tmp.")) {
            char *path = cup__path_join(folder, names.name[i]);
            if (path && stat(path, &there) == 0 && there.st_mtime + OLD_SECONDS < time(NULL))
                cup__file_remove(NULL, path);
            cup__free(path);
        }
    }
    cup__names_free(&names);
    if (good)
        return CUP_OK;
    cup__cache_list_free(out);
    return cup__fail(error, CUP_MEMORY, "out of host memory for the list of %s", folder);
}

static int by_use(const void *a, const void *b)
{
    const cup__cached *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used ? 1 : strcmp(x->path, y->path);
}

static void shrink(const char *folder, int64_t most)
{
    cup__cached_list list;
    int64_t bytes = 0;
    if (scan(NULL, folder, &list) != CUP_OK)
        return;
    for (size_t i = 0; i < list.count; i++)
        bytes += list.items[i].bytes;
    if (list.count && bytes > most)
        qsort(list.items, list.count, sizeof *list.items, by_use);
    for (size_t i = 0; i < list.count && bytes > most; i++) {
        cup__log(CUP__INFO, "%s goes: the cache has more than %lld bytes", list.items[i].path,
                 (long long)most);
        if (cup__file_remove(NULL, list.items[i].path) == CUP_OK)
            bytes -= list.items[i].bytes;
    }
    cup__cache_list_free(&list);
}

/* Looks at the whole folder at the first write and then each time another part was added. */
static void bound(const char *folder, size_t written)
{
    static _Atomic int64_t since = -1;
    int64_t most;
    cup__error error = {0};
    if (cup__env_integer(&error, CUP__ENV_CACHE_MAX, &most) != CUP_OK) {
        cup__log(CUP__INFO, "%s", error.text);
        return;
    }
    int64_t before = atomic_fetch_add(&since, (int64_t)written);
    if (before >= 0 && before + (int64_t)written < most / 64)
        return;
    atomic_store(&since, 0);
    shrink(folder, most);
}

static cup_status write_file(cup__error *error, const char *folder, const cup__code_name *name,
                             const cup__code *code)
{
    cup__text bytes = {0};
    CUP_TRY(cup__folder_make(error, folder));
    cup_status status = cup__code_encode(error, name, code, &bytes);
    char *path = file_path(folder, name);
    if (status == CUP_OK && !path)
        status = cup__fail(error, CUP_MEMORY, "out of host memory for a path");
    if (status == CUP_OK)
        status = cup__file_write(error, path, bytes.bytes, bytes.length);
    if (status == CUP_OK)
        bound(folder, bytes.length);
    cup__free(path);
    cup__text_free(&bytes);
    return status;
}

static pthread_mutex_t unkept_lock = PTHREAD_MUTEX_INITIALIZER;
static cup__error unkept_why;
static int64_t unkept;

void cup__cache_write(const cup__code_name *name, const cup__code *code)
{
    cup__error error = {0};
    char *folder;
    cup_status status = cup__cache_folder(&error, &folder);
    if (status == CUP_OK && !folder)
        status = cup__fail(&error, CUP_STATE, "there is no cache folder");
    else if (status == CUP_OK)
        status = write_file(&error, folder, name, code);
    cup__free(folder);
    if (status == CUP_OK)
        return;
    cup__log(CUP__INFO, "%s is not kept: %s", name->file, error.text);
    pthread_mutex_lock(&unkept_lock);
    if (!unkept++)
        unkept_why = error;
    pthread_mutex_unlock(&unkept_lock);
}

int64_t cup__cache_unkept(cup__error *why)
{
    pthread_mutex_lock(&unkept_lock);
    int64_t count = unkept;
    if (count)
        *why = unkept_why;
    pthread_mutex_unlock(&unkept_lock);
    return count;
}

/* The description in the head of a file, NULL when it has none. */
static char *read_words(const char *path)
{
    cup__file file;
    head h;
    char *words = NULL;
    if (cup__file_open(NULL, path, &file) != CUP_OK)
        return NULL;
    if (cup__file_read_at(NULL, &file, 0, &h, sizeof h) == CUP_OK &&
        !memcmp(h.magic, magic, sizeof magic) && h.words < 65536)
        words = cup__calloc(h.words + 1, 1);
    if (words && cup__file_read_at(NULL, &file, sizeof h, words, h.words) != CUP_OK) {
        cup__free(words);
        words = NULL;
    }
    cup__file_close(&file);
    return words;
}

cup_status cup__cache_list(cup__error *error, cup__cached_list *out)
{
    char *folder;
    *out = (cup__cached_list){0};
    CUP_TRY(cup__cache_folder(error, &folder));
    if (!folder)
        return CUP_OK;
    cup_status status = scan(error, folder, out);
    for (size_t i = 0; i < out->count; i++)
        out->items[i].words = read_words(out->items[i].path);
    cup__free(folder);
    return status;
}

void cup__cache_list_free(cup__cached_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        cup__free(list->items[i].path);
        cup__free(list->items[i].words);
    }
    cup__free(list->items);
    *list = (cup__cached_list){0};
}

/* Whether a file's name is that of a kernel of the source, as add_stem begins it. */
static bool is_of(const char *path, const char *source)
{
    size_t length = strcspn(source, ".");
    const char *name = cup__path_name(path);
    return !*source || (!strncmp(name, source, length) && name[length] == '.');
}

cup_status cup__cache_clear(cup__error *error, const char *source, int64_t *files, int64_t *bytes)
{
    char *folder;
    cup__cached_list list = {0};
    *files = *bytes = 0;
    CUP_TRY(cup__cache_folder(error, &folder));
    cup_status status = folder ? scan(error, folder, &list) : CUP_OK;
    cup__free(folder);
    for (size_t i = 0; i < list.count; i++) {
        if (!is_of(list.items[i].path, source))
            continue;
        cup_status removed = cup__file_remove(error, list.items[i].path);
        *files += removed == CUP_OK;
        *bytes += removed == CUP_OK ? list.items[i].bytes : 0;
        if (status == CUP_OK)
            status = removed;
    }
    cup__cache_list_free(&list);
    return status;
}
