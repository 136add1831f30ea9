/* cupola/cache.h: the compiled kernels on disk. Kernels are compiled for a GPU when they are first
 * needed and kept in a folder, where later processes find them. Here they are listed, removed, and
 * compiled ahead of time, also for GPUs that are not in this machine; a program that is shipped can
 * bring them along in one file, a pack, which CUP_KERNEL_PACK names to its user.
 *
 * The folder is one for all contexts. The context of these calls, on a CPU or a GPU, takes their
 * errors. */
#ifndef CUPOLA_CACHE_H
#define CUPOLA_CACHE_H

#include "cupola/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the path of the folder into `path` of `bytes` bytes: what CUP_CACHE says, else the user's
 * folder for such things. "" where nothing is kept: CUP_CACHE is off, or no folder of the user's is
 * known. The folder need not be there yet. CUP_ARGUMENT where it has no place in `path`. */
CUP_API cup_status cup_cache_folder(cup_context *c, char *path, size_t bytes);

/* Fails, with a sentence, where kernels cannot be kept in that folder; CUP_STATE where there is
 * none. */
CUP_API cup_status cup_cache_check(cup_context *c);

/* One compiled kernel. */
typedef struct cup_cached_kernel {
    const char *source;   /* the file of its text, "gelu.cu" */
    const char *arch;     /* "sm_90a" */
    const char *knobs;    /* what it was compiled with, "TILE=64 VEC=4" */
    const char *compiler; /* "NVRTC 13.0" */
    const char *path;     /* of the file */
    int64_t bytes;        /* of the file */
    int64_t used;         /* when it was last used, in seconds since 1970 */
} cup_cached_kernel;

/* Those that are there now, in the order of their files' names. */
typedef struct cup_cached_kernels cup_cached_kernels;

/* The list; it may be empty. NULL on failure. It stands for itself: it may outlive the context, and
 * kernels that go afterwards stay in it. */
CUP_API cup_cached_kernels *cup_cached_kernels_new(cup_context *c);
CUP_API void cup_cached_kernels_free(cup_cached_kernels *list);

/* How many, how many bytes they take together, and each of them, borrowed from the list: NULL when
 * the index is out of range. */
CUP_API int64_t cup_cached_kernels_count(const cup_cached_kernels *list);
CUP_API int64_t cup_cached_kernels_bytes(const cup_cached_kernels *list);
CUP_API const cup_cached_kernel *cup_cached_kernels_at(const cup_cached_kernels *list,
                                                       int64_t index);

/* Removes the kernels of one source ("gelu.cu"), or with "" all of them, and sets, where they are
 * not NULL, how many went and their bytes. What is running goes on; the next use compiles again.
 * Files in the folder that are no kernels of ours stay. */
CUP_API cup_status cup_cache_clear(cup_context *c, const char *source, int64_t *kernels,
                                   int64_t *bytes);

/* The architectures that kernels can be built for, "sm_75" and later ones; ends with NULL. */
CUP_API const char *const *cup_architectures(void);

/* What to build. NULL options, and all zero, mean the kernels of all ops. */
typedef struct cup_cache_build_options {
    size_t size;    /* of this struct, see CUP_OPTIONS */
    const char *op; /* of this op alone; NULL: of all */
    bool common;    /* only what calls commonly take: f32, f16 and bf16 at the shapes of the
                       benchmark, and the presets of trainings. Not together with `op` */
    int threads;    /* compilations at once; 0: one for each core */
    /* Told behind each compilation, one call at a time but from any thread: how many of how many
     * are done; and what failed, NULL where nothing did. */
    void (*progress)(int64_t done, int64_t count, const char *failure, void *user);
    void *user;
} cup_cache_build_options;

typedef struct cup_cache_built {
    int64_t kernels; /* that are ready now, compiled before or just then */
    int64_t failed;
    int64_t unkept;  /* compiled, but not written to the folder */
    char why[512];   /* why the first of these was not; "" */
} cup_cache_built;

/* Compiles for an architecture what the ops need at the shapes of their checks and benchmarks. No
 * GPU is needed, but NVRTC is: CUP_NO_DEVICE without it. What fails does not keep the others from
 * being compiled, and the first failure is the status. `built` may be NULL. */
CUP_API cup_status cup_cache_build(cup_context *c, const char *arch,
                                   const cup_cache_build_options *options, cup_cache_built *built);

/* Writes all kernels that this process has built or used so far, of all architectures, into one
 * file; sets how many, where `kernels` is not NULL. An older file stays until it is complete. */
CUP_API cup_status cup_cache_pack(cup_context *c, const char *path, int64_t *kernels);

#ifdef __cplusplus
}
#endif
#endif
