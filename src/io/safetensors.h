/* Safetensors files: 8 bytes with the size of a JSON header, the header, the tensors' bytes. Knows
 * descriptions of tensors only, so that neither a device nor a whole tensor in memory is needed. */
#ifndef CUP_IO_SAFETENSORS_H
#define CUP_IO_SAFETENSORS_H

#include "base/file.h"
#include "base/json.h"
#include "cupola/tensor.h"

/* An element type of the format; `dtype` is ours, or -1 where we have none. */
typedef struct cup__safetensors_type {
    const char *name;
    int bits, dtype;
} cup__safetensors_type;

/* The type with that name, NULL for a name the format does not know. */
const cup__safetensors_type *cup__safetensors_type_find(const char *name);
const cup__safetensors_type *cup__safetensors_type_of(cup_dtype dtype);

/* A tensor of a file. */
typedef struct cup__safetensors_entry {
    const char *name;
    const cup__safetensors_type *type;
    int ndim;
    int64_t shape[CUP_MAX_DIMS]; /* the first of them, when there are more */
    uint64_t begin, bytes;       /* where it lies in its file */
    uint32_t file;
} cup__safetensors_entry;

/* A file that is open, or all the files of a model; entries in the order of their names. */
typedef struct cup__safetensors {
    char *path;
    cup__file *files;
    cup__json *headers; /* hold the names */
    size_t file_count;
    cup__safetensors_entry *entries;
    size_t count, capacity;
} cup__safetensors;

/* Opens a file, a model.safetensors.index.json with the files it names, or a folder with either,
 * and checks all that can be checked without reading the tensors. */
cup_status cup__safetensors_open(cup__error *error, const char *path, cup__safetensors *out);
/* The same for a file that is open; it is taken over, also on failure. */
cup_status cup__safetensors_take(cup__error *error, cup__file *file, cup__safetensors *out);
void cup__safetensors_close(cup__safetensors *tensors);

/* Begins one that up to `most` files are put together to, and moves an open one behind those that
 * are in it; then it is sorted. The one that was moved is still to be closed. */
cup_status cup__safetensors_join(cup__error *error, const char *path, size_t most,
                                 cup__safetensors *out);
cup_status cup__safetensors_append(cup__error *error, cup__safetensors *all, cup__safetensors *one);

const cup__safetensors_entry *cup__safetensors_find(const cup__safetensors *tensors,
                                                    const char *name);

/* Fails unless the entry is a tensor that we can have. */
cup_status cup__safetensors_usable(cup__error *error, const cup__safetensors *tensors,
                                   const cup__safetensors_entry *entry);

/* Reads `count` of the entry's bytes, from the offset on. */
cup_status cup__safetensors_read(cup__error *error, const cup__safetensors *tensors,
                                 const cup__safetensors_entry *entry, uint64_t offset, void *out,
                                 size_t count);

/* Checks a header and appends its tensors to `out`, as those of file number `file`, whose data
 * begins at `data_begin` and has `data_bytes` bytes. */
cup_status cup__safetensors_parse(cup__error *error, const cup__json *header, uint32_t file,
                                  uint64_t data_begin, uint64_t data_bytes, cup__safetensors *out);

/* Puts the entries in the order of their names; a name that is there twice fails. */
cup_status cup__safetensors_sort(cup__error *error, cup__safetensors *tensors);

/* A tensor to be written: its bytes, or a call that gives them piece by piece in rising order. */
typedef struct cup__safetensors_source {
    const char *name;
    cup_dtype dtype;
    int ndim;
    const int64_t *shape;
    const void *bytes;
    cup_status (*read)(void *user, uint64_t offset, void *out, size_t count);
    void *user;
} cup__safetensors_source;

/* Writes a whole file into an open writer; puts the sources into the file's order. */
cup_status cup__safetensors_write(cup__error *error, cup__writer *writer,
                                  cup__safetensors_source *sources, size_t count);

#endif
