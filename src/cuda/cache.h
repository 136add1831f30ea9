/* Compiled kernels on disk: one file each in a folder, and packs of many in one file. */
#ifndef CUP_CUDA_CACHE_H
#define CUP_CUDA_CACHE_H

#include "base/error.h"
#include "base/text.h"
#include "cuda/unit.h"

/* The name of one compilation, apart from its key. */
typedef struct cup__code_name {
    const char *file;      /* "gelu.cu" */
    const char *arch;
    const char *knobs;     /* as text */
    int compiler;          /* NVRTC's version; 0: unknown */
    cup__key key;
} cup__code_name;

/* The folder of the cache; NULL when there is none: CUP_CACHE=off, or no HOME. *out is to be
 * freed with cup__free. The folder need not exist. */
cup_status cup__cache_folder(cup__error *error, char **out);

/* Reads code of this name, of the same compiler, or of any when `compiler` is 0. False when there
 * is none; a damaged file is removed. */
bool cup__cache_read(const cup__code_name *name, cup__code *out);

/* Keeps code. A cache that cannot be written is put up with, logged and counted. */
void cup__cache_write(const cup__code_name *name, const cup__code *code);

/* How many kernels this process could not keep; `why` takes the first one's reason. */
int64_t cup__cache_unkept(cup__error *why);

/* A cached file, as its head tells. */
typedef struct cup__cached {
    char *path;
    char *words; /* the readable description, lines of "word: value" */
    int64_t bytes, used; /* size; time of last use, in seconds since 1970 */
} cup__cached;

typedef struct cup__cached_list {
    cup__cached *items;
    size_t count, capacity;
} cup__cached_list;

cup_status cup__cache_list(cup__error *error, cup__cached_list *out);
void cup__cache_list_free(cup__cached_list *list);
/* Removes the compiled kernels of a source ("gelu.cu"), "" being all; counts them. */
cup_status cup__cache_clear(cup__error *error, const char *source, int64_t *files, int64_t *bytes);

/* Whether a file is a pack whose index can be used. */
cup_status cup__pack_check(cup__error *error, const char *path);

/* The file format, shared with packs: a head, the description, the code. */
cup_status cup__code_encode(cup__error *error, const cup__code_name *name, const cup__code *code,
                            cup__text *out);
/* Finds the code in the bytes of a file; false when they are damaged or not of this key. */
bool cup__code_decode(const char *bytes, size_t size, const cup__key *key, cup__code *out);

/* Packs. CUP_KERNEL_PACK names one; else the file "kernels.pack" of the cache's folder is used;
 * then that in ../share/cupola beside the folder of this library or program. They are opened the
 * first time; *out is to be freed. */
bool cup__pack_read(const cup__code_name *name, cup__code *out);
/* Writes a pack of `count` encoded kernels. */
cup_status cup__pack_write(cup__error *error, const char *path, const cup__key *keys,
                           const cup__text *encoded, size_t count);

#endif
