#include "io/named.h"

#include <string.h>

#include "base/memory.h"
#include "tensor/debug.h"
#include "tensor/tensor.h"

#define CHUNK ((size_t)16 << 20)

struct cup_tensors {
    cup_context *context;
    cup_named *tensors;
    int64_t count;
};

/* A tensor on its way into a file; `packed` holds the elements of one that is not contiguous. */
typedef struct outgoing {
    cup_tensor *tensor;
    char *packed;
} outgoing;

static size_t bytes_of(const cup_tensor *t)
{
    return (size_t)(t->count * cup_dtype_size(t->dtype));
}

static cup_status read_part(void *user, uint64_t offset, void *out, size_t count)
{
    outgoing *o = user;
    cup_tensor *t = o->tensor;
    cup__device *device = t->context->device;
    if (t->contiguous)
        return device->calls->read(device, out, (char *)t->data + offset, count);
    if (!o->packed) {
        o->packed = cup__malloc(bytes_of(t));
        if (!o->packed)
            return cup__no_memory(&t->context->error, "saving a view");
        CUP_TRY(cup_tensor_read(t, o->packed, bytes_of(t)));
    }
    memcpy(out, o->packed + offset, count);
    if (offset + count == bytes_of(t)) {
        cup__free(o->packed);
        o->packed = NULL;
    }
    return CUP_OK;
}

static cup_status check_tensors(cup_context *c, const char *path, const cup_named *tensors,
                                int64_t count)
{
    if (count < 0 || (count && !tensors))
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: no list of tensors was given", path);
    for (int64_t i = 0; i < count; i++)
        if (!tensors[i].name)
            return cup__fail(&c->error, CUP_ARGUMENT, "%s: tensor %lld of the list has no name",
                             path, (long long)i);
        else if (!tensors[i].tensor || tensors[i].tensor->context != c)
            return cup__fail(&c->error, CUP_ARGUMENT, "%s: tensor %lld of the list, \"%.100s\", %s",
                             path, (long long)i, tensors[i].name,
                             tensors[i].tensor ? "belongs to another context" : "is NULL");
        else if (!cup__usable(tensors[i].tensor, true, tensors[i].name))
            return c->error.status;
    return CUP_OK;
}

cup_status cup__named_write(cup_context *c, cup__writer *writer, const cup_named *tensors,
                            int64_t count)
{
    CUP_TRY(check_tensors(c, writer->path, tensors, count));
    cup__safetensors_source *sources = cup__calloc((size_t)count, sizeof *sources);
    outgoing *all = cup__calloc((size_t)count, sizeof *all);
    cup_status status = CUP_OK;
    if (!sources || !all)
        status = cup__no_memory(&c->error, writer->path);
    for (int64_t i = 0; status == CUP_OK && i < count; i++) {
        cup_tensor *t = tensors[i].tensor;
        all[i].tensor = t;
        sources[i] = (cup__safetensors_source){.name = tensors[i].name,
                                               .dtype = t->dtype,
                                               .ndim = t->ndim,
                                               .shape = t->shape,
                                               .read = read_part,
                                               .user = &all[i]};
    }
    if (status == CUP_OK)
        status = cup__safetensors_write(&c->error, writer, sources, (size_t)count);
    for (int64_t i = 0; all && i < count; i++)
        cup__free(all[i].packed);
    cup__free(all);
    cup__free(sources);
    return status;
}

static cup_status check_fits(cup_context *c, const cup__safetensors *file, const char *name,
                             const cup_tensor *t, const cup__safetensors_entry **out)
{
    const cup__safetensors_entry *entry = *out = cup__safetensors_find(file, name);
    if (!entry)
        return cup__fail(&c->error, CUP_FORMAT, "%s holds no tensor \"%.100s\"", file->path, name);
    CUP_TRY(cup__safetensors_usable(&c->error, file, entry));
    cup__shape found = {.dtype = (cup_dtype)entry->type->dtype, .ndim = entry->ndim};
    memcpy(found.size, entry->shape, sizeof found.size);
    cup__shape wanted = cup__shape_of(t);
    char have[CUP__SHAPE_TEXT], need[CUP__SHAPE_TEXT];
    if (found.dtype == wanted.dtype && cup__shape_equal(&found, &wanted))
        return CUP_OK;
    return cup__fail(&c->error, found.dtype == wanted.dtype ? CUP_SHAPE : CUP_DTYPE,
                     "%s: \"%.100s\" is %s, but %s is needed", file->path, name,
                     cup__shape_text(&found, have), cup__shape_text(&wanted, need));
}

static cup_status fill_packed(cup_context *c, const cup__safetensors *file,
                              const cup__safetensors_entry *entry, cup_tensor *t)
{
    char *packed = cup__malloc(bytes_of(t));
    if (!packed)
        return cup__no_memory(&c->error, file->path);
    cup_status status = cup__safetensors_read(&c->error, file, entry, 0, packed, bytes_of(t));
    if (status == CUP_OK)
        status = cup_tensor_write(t, packed, bytes_of(t));
    cup__free(packed);
    return status;
}

/* Through a chunk of host memory to a GPU, straight into place on a CPU. */
static cup_status fill_contiguous(cup_context *c, const cup__safetensors *file,
                                  const cup__safetensors_entry *entry, cup_tensor *t, void *chunk)
{
    cup__device *device = c->device;
    size_t bytes = bytes_of(t);
    CUP_TRY(cup__tensor_change(t, "filling"));
    if (!device->is_cuda)
        return cup__safetensors_read(&c->error, file, entry, 0, t->data, bytes);
    for (size_t at = 0; at < bytes;) {
        size_t count = bytes - at < CHUNK ? bytes - at : CHUNK;
        CUP_TRY(cup__safetensors_read(&c->error, file, entry, at, chunk, count));
        CUP_TRY(device->calls->write(device, (char *)t->data + at, chunk, count));
        at += count;
    }
    return CUP_OK;
}

static cup_status fill_all(cup_context *c, const cup__safetensors *file, const cup_named *tensors,
                           int64_t count, void *chunk)
{
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *t = tensors[i].tensor;
        const cup__safetensors_entry *entry;
        CUP_TRY(check_fits(c, file, tensors[i].name, t, &entry));
        if (t->count == 0)
            continue;
        CUP_TRY(t->contiguous ? fill_contiguous(c, file, entry, t, chunk)
                              : fill_packed(c, file, entry, t));
    }
    return CUP_OK;
}

cup_status cup__named_fill(cup_context *c, const cup__safetensors *file, const cup_named *tensors,
                           int64_t count)
{
    CUP_TRY(check_tensors(c, file->path, tensors, count));
    void *chunk = cup__malloc(c->device->is_cuda ? CHUNK : 0);
    if (!chunk)
        return cup__no_memory(&c->error, file->path);
    cup_status status = fill_all(c, file, tensors, count, chunk);
    cup__free(chunk);
    return status;
}

/* Makes the tensors in a scope that the caller closes, and takes them out of it at the end. */
static cup_status load_all(cup_context *c, const cup__safetensors *file, cup_tensors *out)
{
    for (size_t i = 0; i < file->count; i++) {
        const cup__safetensors_entry *entry = &file->entries[i];
        CUP_TRY(cup__safetensors_usable(&c->error, file, entry));
        char *name = cup__strdup(entry->name);
        if (!name)
            return cup__no_memory(&c->error, file->path);
        out->tensors[out->count++] = (cup_named){.name = name};
        cup_tensor *t = cup_tensor_new(c, (cup_dtype)entry->type->dtype, entry->ndim, entry->shape);
        if (!t)
            return cup_error(c);
        out->tensors[out->count - 1].tensor = t;
    }
    CUP_TRY(cup__named_fill(c, file, out->tensors, out->count));
    for (int64_t i = 0; i < out->count; i++)
        cup_keep(out->tensors[i].tensor);
    return CUP_OK;
}

static cup_tensors *load(cup_context *c, const cup__safetensors *file)
{
    cup_tensors *out = cup__calloc(1, sizeof *out);
    if (out)
        out->tensors = cup__calloc(file->count, sizeof *out->tensors);
    if (!out || !out->tensors) {
        cup__free(out);
        cup__no_memory(&c->error, file->path);
        return NULL;
    }
    out->context = c;
    cup__context_join(c);
    cup_scope_open(c);
    cup_status status = cup_error(c);
    if (status == CUP_OK)
        status = load_all(c, file, out);
    if (status != CUP_OK)
        for (int64_t i = 0; i < out->count; i++)
            out->tensors[i].tensor = NULL;
    cup_scope_close(c);
    if (status == CUP_OK)
        return out;
    cup_tensors_free(out);
    return NULL;
}

cup_tensors *cup_safetensors_load(cup_context *c, const char *path)
{
    if (!c || cup_error(c) != CUP_OK)
        return NULL;
    if (!path) {
        cup__fail(&c->error, CUP_ARGUMENT, "safetensors: the path is NULL");
        return NULL;
    }
    cup__safetensors file;
    if (cup__safetensors_open(&c->error, path, &file) != CUP_OK)
        return NULL;
    cup_tensors *out = load(c, &file);
    cup__safetensors_close(&file);
    return out;
}

void cup_tensors_free(cup_tensors *tensors)
{
    if (!tensors)
        return;
    for (int64_t i = 0; i < tensors->count; i++) {
        cup_tensor_free(tensors->tensors[i].tensor);
        cup__free((void *)(uintptr_t)tensors->tensors[i].name);
    }
    cup__free(tensors->tensors);
    cup__context_leave(tensors->context);
    cup__free(tensors);
}

int64_t cup_tensors_count(const cup_tensors *tensors)
{
    return tensors ? tensors->count : 0;
}

const char *cup_tensors_name(const cup_tensors *tensors, int64_t index)
{
    bool there = tensors && index >= 0 && index < tensors->count;
    return there ? tensors->tensors[index].name : NULL;
}

cup_tensor *cup_tensors_at(const cup_tensors *tensors, int64_t index)
{
    bool there = tensors && index >= 0 && index < tensors->count;
    return there ? tensors->tensors[index].tensor : NULL;
}

cup_tensor *cup_tensors_find(const cup_tensors *tensors, const char *name)
{
    int64_t low = 0, high = cup_tensors_count(tensors);
    while (name && low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, tensors->tensors[middle].name);
        if (order == 0)
            return tensors->tensors[middle].tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

cup_status cup_safetensors_fill(cup_context *c, const char *path, const cup_named *tensors,
                                int64_t count)
{
    if (!c || !c->device)
        return cup_error(c);
    if (!path)
        return cup__fail(&c->error, CUP_ARGUMENT, "safetensors: the path is NULL");
    cup__safetensors file;
    CUP_TRY(cup__safetensors_open(&c->error, path, &file));
    cup_status status = cup__named_fill(c, &file, tensors, count);
    cup__safetensors_close(&file);
    return status;
}

cup_status cup_safetensors_save(cup_context *c, const char *path, const cup_named *tensors,
                                int64_t count)
{
    if (!c)
        return CUP_MEMORY;
    if (!path)
        return cup__fail(&c->error, CUP_ARGUMENT, "safetensors: the path is NULL");
    cup__writer writer;
    CUP_TRY(cup__writer_open(&c->error, path, &writer));
    cup_status status = cup__named_write(c, &writer, tensors, count);
    if (status == CUP_OK)
        return cup__writer_commit(&c->error, &writer);
    cup__writer_abandon(&writer);
    return status;
}
