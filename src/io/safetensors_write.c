/* Writing: the header is complete before the first byte of data, which is then streamed. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "io/safetensors.h"

#define CHUNK ((size_t)16 << 20)

static int by_name(const void *a, const void *b)
{
    const cup__safetensors_source *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The format's order: the largest elements first, so that all are aligned, then by name. */
static int in_file_order(const void *a, const void *b)
{
    const cup__safetensors_source *x = a, *y = b;
    int64_t x_size = cup_dtype_size(x->dtype), y_size = cup_dtype_size(y->dtype);
    if (x_size != y_size)
        return x_size > y_size ? -1 : 1;
    return by_name(a, b);
}

static cup_status check_names(cup__error *error, const char *path, cup__safetensors_source *sources,
                              size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *name = sources[i].name;
        if (!name || strcmp(name, "__metadata__") == 0)
            return cup__fail(error, CUP_ARGUMENT, "%s: a tensor cannot have the name %s", path,
                             name ? name : "NULL");
        if (cup__utf8_check(name, strlen(name)) != strlen(name))
            return cup__fail(error, CUP_ARGUMENT, "%s: a tensor's name is not UTF-8", path);
    }
    if (count)
        qsort(sources, count, sizeof *sources, by_name);
    for (size_t i = 1; i < count; i++)
        if (by_name(&sources[i - 1], &sources[i]) == 0)
            return cup__fail(error, CUP_ARGUMENT, "%s: two tensors have the name \"%.100s\"", path,
                             sources[i].name);
    return CUP_OK;
}

static cup_status bytes_of(cup__error *error, const char *path,
                           const cup__safetensors_source *source, uint64_t *out)
{
    int64_t bytes = cup_dtype_size(source->dtype);
    bool valid = bytes > 0 && source->ndim >= 0 && source->ndim <= CUP_MAX_DIMS;
    for (int i = 0; valid && i < source->ndim; i++)
        valid = source->shape[i] >= 0 && cup__multiply_i64(bytes, source->shape[i], &bytes);
    if (!valid)
        return cup__fail(error, CUP_ARGUMENT, "%s: \"%.100s\" has no valid shape and dtype", path,
                         source->name);
    *out = (uint64_t)bytes;
    return CUP_OK;
}

static cup_status add_tensor(cup__error *error, const char *path, cup__json_writer *header,
                             const cup__safetensors_source *source, uint64_t *end)
{
    uint64_t bytes;
    CUP_TRY(bytes_of(error, path, source, &bytes));
    cup__json_open(header, source->name, CUP__JSON_OBJECT);
    cup__json_add_string(header, "dtype", cup__safetensors_type_of(source->dtype)->name);
    cup__json_open(header, "shape", CUP__JSON_ARRAY);
    for (int i = 0; i < source->ndim; i++)
        cup__json_add_integer(header, NULL, source->shape[i]);
    cup__json_close(header);
    cup__json_open(header, "data_offsets", CUP__JSON_ARRAY);
    cup__json_add_unsigned(header, NULL, *end);
    if (__builtin_add_overflow(*end, bytes, end) || *end > INT64_MAX)
        return cup__fail(error, CUP_ARGUMENT, "%s: the tensors are too large for a file", path);
    cup__json_add_unsigned(header, NULL, *end);
    cup__json_close(header);
    cup__json_close(header);
    return CUP_OK;
}

static cup_status make_header(cup__error *error, const char *path, cup__json_writer *header,
                              const cup__safetensors_source *sources, size_t count)
{
    uint64_t end = 0;
    cup__json_open(header, NULL, CUP__JSON_OBJECT);
    /* Readers in Python ask whose layout the tensors have; ours is PyTorch's. */
    cup__json_open(header, "__metadata__", CUP__JSON_OBJECT);
    cup__json_add_string(header, "format", "pt");
    cup__json_close(header);
    for (size_t i = 0; i < count; i++)
        CUP_TRY(add_tensor(error, path, header, &sources[i], &end));
    cup__json_close(header);
    while (!header->text.failed && header->text.length % 8)
        cup__text_append(&header->text, " ", 1);
    if (header->text.failed)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", path);
    return CUP_OK;
}

static cup_status write_tensor(cup__error *error, cup__writer *writer,
                               const cup__safetensors_source *source, void *chunk)
{
    uint64_t bytes = 0;
    CUP_TRY(bytes_of(error, writer->path, source, &bytes));
    if (source->bytes)
        return cup__writer_add(error, writer, source->bytes, (size_t)bytes);
    for (uint64_t at = 0; at < bytes;) {
        size_t count = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        CUP_TRY(source->read(source->user, at, chunk, count));
        CUP_TRY(cup__writer_add(error, writer, chunk, count));
        at += count;
    }
    return CUP_OK;
}

static cup_status write_all(cup__error *error, cup__writer *writer, const cup__text *header,
                            const cup__safetensors_source *sources, size_t count)
{
    uint64_t size = header->length;
    CUP_TRY(cup__writer_add(error, writer, &size, sizeof size));
    CUP_TRY(cup__writer_add(error, writer, header->bytes, header->length));
    void *chunk = cup__malloc(CHUNK);
    if (!chunk)
        return cup__fail(error, CUP_MEMORY, "%s: out of host memory", writer->path);
    cup_status status = CUP_OK;
    for (size_t i = 0; i < count && status == CUP_OK; i++)
        status = write_tensor(error, writer, &sources[i], chunk);
    cup__free(chunk);
    return status;
}

cup_status cup__safetensors_write(cup__error *error, cup__writer *writer,
                                  cup__safetensors_source *sources, size_t count)
{
    CUP_TRY(check_names(error, writer->path, sources, count));
    if (count)
        qsort(sources, count, sizeof *sources, in_file_order);
    cup__json_writer header = {0};
    cup_status status = make_header(error, writer->path, &header, sources, count);
    if (status == CUP_OK)
        status = write_all(error, writer, &header.text, sources, count);
    cup__text_free(&header.text);
    return status;
}
