#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MOST_HEADER 100000000

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian, so are we");

static cup_status read_header(cup__error *error, const cup__file *file, cup__json *out,
                              uint64_t *data_begin)
{
    uint64_t size = 0;
    if (file->size < 8)
        return cup__fail(error, CUP_FORMAT,
                         "%s is no safetensors file: it has %llu bytes, and the size of the "
                         "header alone takes 8",
                         file->path, (unsigned long long)file->size);
    CUP_TRY(cup__file_read_at(error, file, 0, &size, 8));
    if (size > MOST_HEADER || size > file->size - 8)
        return cup__fail(error, CUP_FORMAT,
                         "%s is truncated or no safetensors file: its header would have %llu "
                         "bytes, the file has %llu, and a header at most 100000000",
                         file->path, (unsigned long long)size, (unsigned long long)file->size);
    char *text = cup__malloc((size_t)size);
    if (!text)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", file->path);
    cup_status status = cup__file_read_at(error, file, 8, text, (size_t)size);
    if (status == CUP_OK && (size == 0 || text[0] != '{'))
        status =
            cup__fail(error, CUP_FORMAT,
                      "%s is no safetensors file: its header does not begin with {", file->path);
    if (status == CUP_OK)
        status = cup__json_parse(error, file->path, text, (size_t)size, out);
    cup__free(text);
    *data_begin = 8 + size;
    return status;
}

cup_status cup__safetensors_take(cup__error *error, cup__file *file, cup__safetensors *out)
{
    *out = (cup__safetensors){.path = cup__strdup(file->path),
                              .files = cup__calloc(1, sizeof *out->files),
                              .headers = cup__calloc(1, sizeof *out->headers)};
    cup_status status = CUP_OK;
    uint64_t begin = 0;
    if (!out->path || !out->files || !out->headers)
        status = cup__fail(error, CUP_MEMORY, "%s: out of host memory", file->path);
    else
        status = read_header(error, file, &out->headers[0], &begin);
    if (status == CUP_OK)
        status = cup__safetensors_parse(error, &out->headers[0], 0, begin, file->size - begin, out);
    if (status == CUP_OK)
        status = cup__safetensors_sort(error, out);
    if (status != CUP_OK) {
        cup__file_close(file);
        cup__safetensors_close(out);
        return status;
    }
    out->files[0] = *file;
    out->file_count = 1;
    *file = (cup__file){.handle = -1};
    return CUP_OK;
}

static int by_name(const void *a, const void *b)
{
    const cup__safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

cup_status cup__safetensors_sort(cup__error *error, cup__safetensors *tensors)
{
    if (tensors->count)
        qsort(tensors->entries, tensors->count, sizeof *tensors->entries, by_name);
    for (size_t i = 1; i < tensors->count; i++)
        if (by_name(&tensors->entries[i - 1], &tensors->entries[i]) == 0)
            return cup__fail(error, CUP_FORMAT, "%s: two files hold a tensor \"%.100s\"",
                             tensors->path, tensors->entries[i].name);
    return CUP_OK;
}

void cup__safetensors_close(cup__safetensors *tensors)
{
    for (size_t i = 0; i < tensors->file_count; i++)
        cup__file_close(&tensors->files[i]);
    /* The header of a file that did not pass is there although the file does not count. */
    for (size_t i = 0; tensors->headers && i < tensors->file_count + !tensors->file_count; i++)
        cup__json_free(&tensors->headers[i]);
    cup__free(tensors->path);
    cup__free(tensors->files);
    cup__free(tensors->headers);
    cup__free(tensors->entries);
    *tensors = (cup__safetensors){0};
}

const cup__safetensors_entry *cup__safetensors_find(const cup__safetensors *tensors,
                                                    const char *name)
{
    cup__safetensors_entry key = {.name = name};
    if (tensors->count == 0)
        return NULL;
    return bsearch(&key, tensors->entries, tensors->count, sizeof key, by_name);
}

cup_status cup__safetensors_usable(cup__error *error, const cup__safetensors *tensors,
                                   const cup__safetensors_entry *entry)
{
    if (entry->type->dtype < 0)
        return cup__fail(
            error, CUP_UNSUPPORTED,
            "%s: \"%.100s\" has dtype %s, which Cupola does not have; convert it first",
            tensors->path, entry->name, entry->type->name);
    if (entry->ndim > CUP_MAX_DIMS)
        return cup__fail(error, CUP_UNSUPPORTED,
                         "%s: \"%.100s\" has %d dimensions; Cupola has at most %d", tensors->path,
                         entry->name, entry->ndim, CUP_MAX_DIMS);
    return CUP_OK;
}

static cup_status check_booleans(cup__error *error, const cup__safetensors *tensors,
                                 const cup__safetensors_entry *entry, const uint8_t *bytes,
                                 size_t count)
{
    uint8_t all = 0;
    for (size_t i = 0; i < count; i++)
        all |= bytes[i];
    if (all > 1)
        return cup__fail(error, CUP_FORMAT,
                         "%s: \"%.100s\" has dtype BOOL and bytes other than 0 and 1",
                         tensors->path, entry->name);
    return CUP_OK;
}

cup_status cup__safetensors_read(cup__error *error, const cup__safetensors *tensors,
                                 const cup__safetensors_entry *entry, uint64_t offset, void *out,
                                 size_t count)
{
    if (offset > entry->bytes || count > entry->bytes - offset)
        return cup__fail(error, CUP_INTERNAL, "\"%.100s\" is read past its end", entry->name);
    const cup__file *file = &tensors->files[entry->file];
    CUP_TRY(cup__file_read_at(error, file, entry->begin + offset, out, count));
    if (entry->type->dtype == CUP_BOOL)
        return check_booleans(error, tensors, entry, out, count);
    return CUP_OK;
}
