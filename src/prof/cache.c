#include "cupola/cache.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "cuda/cache.h"
#include "cuda/dry.h"
#include "cuda/loader.h"
#include "prof/kernels.h"
#include "tensor/context.h"

#define NO_FOLDER                                                                                  \
    "there is no cache: CUP_CACHE is off, or neither XDG_CACHE_HOME nor HOME is set; set "         \
    "CUP_CACHE"

static cup_status begin(cup_context *c)
{
    return c ? c->error.status : CUP_MEMORY;
}

cup_status cup_cache_folder(cup_context *c, char *path, size_t bytes)
{
    char *folder;
    if (path && bytes)
        path[0] = 0;
    CUP_TRY(begin(c));
    CUP_TRY(cup__cache_folder(&c->error, &folder));
    const char *found = folder ? folder : "";
    cup_status status = CUP_OK;
    if (!path || strlen(found) >= bytes)
        status = cup__fail(&c->error, CUP_ARGUMENT,
                           "the path of the cache has no place in %zu bytes; it needs %zu", bytes,
                           strlen(found) + 1);
    else
        snprintf(path, bytes, "%s", found);
    cup__free(folder);
    return status;
}

cup_status cup_cache_check(cup_context *c)
{
    char *folder;
    CUP_TRY(begin(c));
    CUP_TRY(cup__cache_folder(&c->error, &folder));
    cup_status status = folder ? cup__folder_check(&c->error, folder)
                               : cup__fail(&c->error, CUP_STATE, "%s", NO_FOLDER);
    cup__free(folder);
    return status;
}

struct cup_cached_kernels {
    cup__cached_list files;
    cup_cached_kernel *kernels; /* whose words lie in the files' own, each ended by a 0 */
    int64_t bytes;
};

/* The value behind "\nname: " in a kernel's description, which it ends; "" when there is none. */
static const char *word_of(char *words, const char *name)
{
    char head[32];
    snprintf(head, sizeof head, "\n%s: ", name);
    char *at = words ? strstr(words, head) : NULL;
    return at ? at + strlen(head) : "";
}

static void read_words(cup_cached_kernel *to, const cup__cached *file)
{
    *to = (cup_cached_kernel){.source = word_of(file->words, "file"),
                              .arch = word_of(file->words, "arch"),
                              .knobs = word_of(file->words, "knobs"),
                              .compiler = word_of(file->words, "compiler"),
                              .path = file->path,
                              .bytes = file->bytes,
                              .used = file->used};
    for (char *at = file->words; at && *at; at++)
        if (*at == '\n')
            *at = 0;
}

cup_cached_kernels *cup_cached_kernels_new(cup_context *c)
{
    if (begin(c) != CUP_OK)
        return NULL;
    cup_cached_kernels *list = cup__calloc(1, sizeof *list);
    if (!list) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the list of kernels");
        return NULL;
    }
    if (cup__cache_list(&c->error, &list->files) == CUP_OK) {
        list->kernels = cup__calloc(list->files.count, sizeof *list->kernels);
        if (!list->kernels)
            cup__fail(&c->error, CUP_MEMORY, "out of host memory for the list of kernels");
    }
    if (c->error.status != CUP_OK) {
        cup_cached_kernels_free(list);
        return NULL;
    }
    for (size_t i = 0; i < list->files.count; i++) {
        read_words(&list->kernels[i], &list->files.items[i]);
        list->bytes += list->files.items[i].bytes;
    }
    return list;
}

void cup_cached_kernels_free(cup_cached_kernels *list)
{
    if (!list)
        return;
    cup__cache_list_free(&list->files);
    cup__free(list->kernels);
    cup__free(list);
}

int64_t cup_cached_kernels_count(const cup_cached_kernels *list)
{
    return list ? (int64_t)list->files.count : 0;
}

int64_t cup_cached_kernels_bytes(const cup_cached_kernels *list)
{
    return list ? list->bytes : 0;
}

const cup_cached_kernel *cup_cached_kernels_at(const cup_cached_kernels *list, int64_t index)
{
    return index >= 0 && index < cup_cached_kernels_count(list) ? &list->kernels[index] : NULL;
}

cup_status cup_cache_clear(cup_context *c, const char *source, int64_t *kernels, int64_t *bytes)
{
    int64_t files = 0, size = 0;
    if (kernels)
        *kernels = 0;
    if (bytes)
        *bytes = 0;
    CUP_TRY(begin(c));
    if (!source)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "the source whose kernels shall go is NULL; \"\" is all of them");
    cup_status status = cup__cache_clear(&c->error, source, &files, &size);
    if (kernels)
        *kernels = files;
    if (bytes)
        *bytes = size;
    return status;
}

const char *const *cup_architectures(void)
{
    return cup__architectures;
}

/* A build under way. */
typedef struct build {
    cup_cache_build_options options;
    int64_t failed;
} build;

static void on_kernel(void *user, int done, int count, const cup__kernel_request *request,
                      const char *failure)
{
    build *b = user;
    (void)request;
    b->failed += failure != NULL;
    if (b->options.progress)
        b->options.progress(done, count, failure, b->options.user);
}

static cup_status check_build(cup_context *c, const char *arch, const cup_cache_build_options *o)
{
    if (!arch)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "the architecture to build for is NULL; name one, as sm_90a");
    if (o->op && o->common)
        return cup__fail(&c->error, CUP_ARGUMENT, "common kernels are of all ops: leave out `op`");
    if (o->op && !cup__row_find(o->op))
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no op %s; cupola ops lists them",
                         o->op);
    if (o->threads < 0)
        return cup__fail(&c->error, CUP_ARGUMENT, "threads must not be negative; 0 is one a core");
    return cup__library_need(&c->error, CUP__LIBNVRTC);
}

cup_status cup_cache_build(cup_context *c, const char *arch, const cup_cache_build_options *options,
                           cup_cache_built *built)
{
    build b = {.options.size = sizeof b.options};
    cup__error before = {0}, after = {0};
    int count = 0;
    if (built)
        *built = (cup_cache_built){0};
    CUP_TRY(begin(c));
    CUP_TRY(cup__options_take(&c->error, "cache_build", &b.options, sizeof b.options, options));
    const cup_cache_build_options *o = &b.options;
    CUP_TRY(check_build(c, arch, o));
    int64_t unkept = cup__cache_unkept(&before);
    cup_status status =
        o->common ? cup__kernels_build_common(&c->error, arch, o->threads, on_kernel, &b, &count)
                  : cup__kernels_build(&c->error, arch, o->op, o->threads, on_kernel, &b, &count);
    if (!built)
        return status;
    built->kernels = count - b.failed;
    built->failed = b.failed;
    built->unkept = cup__cache_unkept(&after) - unkept;
    if (built->unkept)
        snprintf(built->why, sizeof built->why, "%.511s", after.text);
    return status;
}

cup_status cup_cache_pack(cup_context *c, const char *path, int64_t *kernels)
{
    int count = 0;
    if (kernels)
        *kernels = 0;
    CUP_TRY(begin(c));
    if (!path)
        return cup__fail(&c->error, CUP_ARGUMENT, "the path of the pack is NULL; name one");
    cup_status status = cup__kernels_pack(&c->error, path, &count);
    if (kernels)
        *kernels = count;
    return status;
}
