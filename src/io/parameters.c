/* Lists of parameters in files. */
#include "cupola/parameters.h"

#include <stdio.h>
#include <string.h>

#include "cupola/io.h"
#include "io/named.h"
#include "nn/parameters.h"
#include "tensor/tensor.h"

#define NAMED_MOST 5 /* of each kind of difference, in a sentence */

static cup_status check_whole(const cup_parameters *list, const char *what)
{
    if (!cup__parameters_sharers(list))
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_UNSUPPORTED,
                     "parameters: a file is not %s by several processes that share out the list; "
                     "checkpoints of cup_loop are, and hold the whole",
                     what);
}

cup_status cup_parameters_save(cup_parameters *list, const char *path)
{
    if (!list)
        return CUP_ARGUMENT;
    cup_context *c = cup__parameters_context(list);
    int64_t count;
    if (c->error.status != CUP_OK)
        return c->error.status;
    CUP_TRY(check_whole(list, "written"));
    const cup_named *named = cup_parameters_named(list, &count);
    return named ? cup_safetensors_save(c, path, named, count) : c->error.status;
}

/* What is wrong, in words, as far as there is room for them. */
typedef struct difference {
    char words[800];
    size_t used;
    int64_t missing, superfluous, other;
} difference;

static void tell(difference *d, int64_t number, const char *name, const char *what)
{
    if (number > NAMED_MOST || d->used + 300 > sizeof d->words)
        return;
    int wrote = snprintf(d->words + d->used, sizeof d->words - d->used, "%s\"%.100s\" %s",
                         d->used ? ", " : "", name, what);
    d->used += wrote > 0 ? (size_t)wrote : 0;
}

static void compare(difference *d, const cup__safetensors *file, const cup_named *named)
{
    const cup__safetensors_entry *entry = cup__safetensors_find(file, named->name);
    cup__shape wanted = cup__shape_of(named->tensor);
    char have[CUP__SHAPE_TEXT], need[CUP__SHAPE_TEXT], what[2 * CUP__SHAPE_TEXT + 20];
    if (!entry) {
        tell(d, ++d->missing, named->name, "is missing");
        return;
    }
    cup__shape found = {.dtype = (cup_dtype)entry->type->dtype, .ndim = entry->ndim};
    memcpy(found.size, entry->shape, sizeof found.size);
    if (found.dtype == wanted.dtype && cup__shape_equal(&found, &wanted))
        return;
    snprintf(what, sizeof what, "is %s and not %s", cup__shape_text(&found, have),
             cup__shape_text(&wanted, need));
    tell(d, ++d->other, named->name, what);
}

static bool is_named(const cup_named *named, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(named[i].name, name))
            return true;
    return false;
}

static cup_status check(cup_parameters *list, const cup__safetensors *file, const cup_named *named,
                        int64_t count)
{
    cup_context *c = cup__parameters_context(list);
    const char *prefix = cup__parameters_prefix(list);
    difference d = {0};
    for (int64_t i = 0; i < count; i++)
        compare(&d, file, &named[i]);
    for (size_t i = 0; i < file->count; i++) {
        const char *name = file->entries[i].name;
        if (!strncmp(name, prefix, strlen(prefix)) && !is_named(named, count, name))
            tell(&d, ++d.superfluous, name, "is superfluous");
    }
    if (d.missing + d.superfluous + d.other == 0)
        return CUP_OK;
    return cup__fail(&c->error, d.other ? CUP_SHAPE : CUP_FORMAT,
                     "%s is not of this model: %lld of its %lld tensors are missing, %lld have "
                     "another shape or dtype, %lld are superfluous: %s",
                     file->path, (long long)d.missing, (long long)count, (long long)d.other,
                     (long long)d.superfluous, d.words);
}

cup_status cup_parameters_load(cup_parameters *list, const char *path)
{
    if (!list)
        return CUP_ARGUMENT;
    cup_context *c = cup__parameters_context(list);
    cup__safetensors file;
    int64_t count;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!path)
        return cup__fail(&c->error, CUP_ARGUMENT, "parameters: the path is NULL");
    CUP_TRY(check_whole(list, "read"));
    const cup_named *named = cup_parameters_named(list, &count);
    if (!named)
        return c->error.status;
    CUP_TRY(cup__safetensors_open(&c->error, path, &file));
    cup_status status = check(list, &file, named, count);
    if (status == CUP_OK)
        status = cup__named_fill(c, &file, named, count);
    cup__safetensors_close(&file);
    return status;
}
