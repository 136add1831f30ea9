#include "data/source.h"

#include <string.h>

#include "base/memory.h"
#include "base/philox.h"

/* Takes what a file or the caller says of the whole array apart into samples. */
static cup_status set_shape(cup__error *error, const char *what, cup_dtype dtype, int ndim,
                            const int64_t *shape, cup__source *out)
{
    cup__shape whole = {.dtype = dtype, .ndim = ndim};
    int64_t count;
    if (ndim < 1)
        return cup__fail(error, CUP_SHAPE,
                         "%s has no dimension of samples; its first one is taken for that", what);
    if (ndim <= CUP_MAX_DIMS)
        memcpy(whole.size, shape, sizeof *shape * (size_t)ndim);
    CUP_TRY(cup__shape_check(error, &whole, &count));
    out->samples = shape[0];
    out->sample = (cup__shape){.dtype = dtype, .ndim = ndim - 1};
    memcpy(out->sample.size, shape + 1, sizeof *shape * (size_t)(ndim - 1));
    CUP_TRY(cup__shape_check(error, &out->sample, &count));
    out->bytes = (size_t)(count * cup_dtype_size(dtype));
    return CUP_OK;
}

static cup_status open_safetensors(cup__error *error, const cup_loader_array *a, cup__source *out)
{
    CUP_TRY(cup__safetensors_open(error, a->path, &out->tensors));
    out->entry = cup__safetensors_find(&out->tensors, a->name);
    if (!out->entry)
        return cup__fail(error, CUP_FORMAT, "%s holds no tensor \"%.100s\"", a->path, a->name);
    CUP_TRY(cup__safetensors_usable(error, &out->tensors, out->entry));
    return set_shape(error, a->name, (cup_dtype)out->entry->type->dtype, out->entry->ndim,
                     out->entry->shape, out);
}

cup_status cup__source_open(cup__error *error, const cup_loader_array *a, cup__source *out)
{
    *out = (cup__source){0};
    if (a->path && a->name)
        return open_safetensors(error, a, out);
    if (a->path) {
        CUP_TRY(cup__npy_open(error, a->path, &out->npy));
        return set_shape(error, a->path, out->npy.dtype, out->npy.ndim, out->npy.shape, out);
    }
    if (!a->data || !a->shape)
        return cup__fail(error, CUP_ARGUMENT,
                         "an array of a loader has neither a path nor data and shape");
    out->data = a->data;
    return set_shape(error, "an array in memory", a->dtype, a->ndim, a->shape, out);
}

void cup__source_close(cup__source *source)
{
    cup__safetensors_close(&source->tensors);
    cup__npy_close(&source->npy);
}

cup_status cup__source_read(cup__error *error, const cup__source *s, int64_t first, int64_t count,
                            void *to)
{
    size_t bytes = (size_t)count * s->bytes;
    uint64_t offset = (uint64_t)first * s->bytes;
    if (!bytes)
        return CUP_OK;
    if (s->entry)
        return cup__safetensors_read(error, &s->tensors, s->entry, offset, to, bytes);
    if (!s->data)
        return cup__file_read_at(error, &s->npy.file, s->npy.begin + offset, to, bytes);
    memcpy(to, s->data + offset, bytes);
    return CUP_OK;
}

void cup__order_make(uint32_t *order, int64_t samples, uint64_t seed, int64_t epoch)
{
    cup__philox_words words = {{0}};
    for (int64_t i = 0; i < samples; i++)
        order[i] = (uint32_t)i;
    for (int64_t i = samples - 1; i > 0; i--) {
        uint64_t block = (uint64_t)(i / 2);
        if (i % 2 || i == samples - 1)
            words = cup__philox(seed, (uint32_t)block, (uint32_t)(block >> 32) | 0x80000000u,
                                (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32));
        const uint32_t *half = &words.at[i % 2 * 2];
        uint64_t bits = (uint64_t)half[1] << 32 | half[0];
        int64_t j = (int64_t)((unsigned __int128)bits * (uint64_t)(i + 1) >> 64);
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}
