/* cupola/prof.h: is it right, how fast is it, what does it hold. */
#ifndef CUPOLA_PROF_H
#define CUPOLA_PROF_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory of one context, in bytes. */
typedef struct cup_memory {
    int64_t allocated, peak_allocated; /* in use by tensors */
    int64_t reserved, peak_reserved;   /* held from the driver or the system */
    int64_t largest_free;              /* biggest block that is reserved and not in use */
    int64_t limit;                     /* 0: none */
    int64_t device_free, device_total; /* of the whole device */
    int64_t allocations, cached;       /* calls, and those that were served from what is held */
} cup_memory;
CUP_API cup_status cup_memory_use(cup_context *c, cup_memory *out);

/* Fails with CUP_MEMORY where the context's device has less than so many bytes in all, or may take
 * less, or where on a CPU less is left: to refuse at once what cannot be. `what` says, in the
 * plural, what needs them, and begins the sentence. Where nobody knows, it does not fail. */
CUP_API cup_status cup_memory_check(cup_context *c, double bytes, const char *what);

/* What one kind of use holds of a GPU context's memory. */
typedef struct cup_memory_user {
    const char *tag; /* the op that made the tensors, or "tensor"; lives as long as the library */
    int64_t bytes, blocks;
} cup_memory_user;

/* Fills `users` with at most `most` of the largest, and returns how many; 0 on a CPU. */
CUP_API int cup_memory_users(cup_context *c, cup_memory_user *users, int most);

/* Waits for the device and gives memory back that no tensor uses; returns the bytes. Memory that
 * is freed is otherwise kept, because it is soon used again. */
CUP_API int64_t cup_memory_trim(cup_context *c);

/* Writes an HTML page of a GPU context's memory that needs no other file: the history of what was
 * in use, a map of all blocks, the users by tag now and at the peak. It can be written after a
 * failure too, such as CUP_MEMORY. On a CPU it fails with CUP_UNSUPPORTED. */
CUP_API cup_status cup_memory_page(cup_context *c, const char *path);

/* One implementation of one op, held against the specification at one sample call. Errors are in
 * units of the dtype's epsilon, relative to the element and to the size of the whole. */
typedef struct cup_check_result {
    const char *op, *impl; /* "specification" and "view" are implementations too */
    cup_dtype dtype;
    const char *layout;    /* of the inputs: "row-major", "padded" or "transposed" */
    const char *shapes;
    double error, tolerance;
    bool passed;
    bool unreached;        /* no sample reached this implementation, and `note` says why */
    const char *repeat;    /* of a random call: the call as text, for cupola check --repeat */
    const char *note;      /* what is wrong when not passed; lives during the report */
} cup_check_result;

/* Checks one op, or all when `op` is NULL, on the context's device: every implementation, every
 * dtype, odd shapes, strided inputs, guard bytes, equal bits in a second run. Each result is
 * reported; the status tells only whether the check itself could run. */
CUP_API cup_status cup_check(cup_context *c, const char *op,
                             void (*report)(const cup_check_result *result, void *user),
                             void *user);

/* What the device can do at best: bytes a second of a large copy, read plus written, measured;
 * and operations a second of the dtype that is the index, an addition and a multiplication being
 * two, 0 where not known. */
typedef struct cup_ceiling {
    double copy_bytes;
    double flops[16];
} cup_ceiling;
CUP_API cup_status cup_ceiling_measure(cup_context *c, cup_ceiling *out);

/* One implementation timed at one shape, caches flushed before each run. */
typedef struct cup_bench_result {
    const char *op, *impl, *shapes;
    cup_dtype dtype;
    int runs;
    double median_us, low_us, high_us; /* the middle and the quartiles */
    double bytes, flops;               /* that the call must move and do */
    double floor_us;                   /* what the ceiling allows at best */
    const char *attributes;   /* those that are not zero, "causal=1 axes=0,2" */
    double error;             /* against the specification, as in cup_check; NAN: not known */
    const char *error_shapes; /* where that was measured: these shapes, unless there is no double
                                 to compare with and the specification had to be given less */
    bool chosen;              /* the implementation that a call takes */
    double copy_us; /* a plain copy that moves the same bytes, timed in the same way; NAN where
                       operations and not bytes set the floor */
} cup_bench_result;

/* The fastest of the ways to do a call, as measured. */
typedef struct cup_tune_result {
    const char *op, *shapes;
    cup_dtype dtype;
    const char *way; /* "wgmma tile_m=128 ...", or an implementation; lives while reported */
    double us;       /* its median */
    int ways;        /* that were tried */
    double seconds;  /* it took, kernels that had to be compiled included */
} cup_tune_result;

/* How to time. All zero means the defaults. */
typedef struct cup_bench_options {
    size_t size;        /* of this struct, see CUP_OPTIONS */
    cup_dtype dtype;    /* of floating-point inputs */
    const char *shapes; /* one for each input, "32x768 768"; NULL: the op's own bench shapes */
    const char *impl;   /* only this implementation; NULL: all that accept */
    double seconds;     /* for each implementation and shape; 0 means 0.2 */
    const char *attributes; /* "causal=1"; what is not named is as in the op's first bench call */
    int64_t indices;    /* whole numbers among the inputs are below this; 0: the op's own choice */
    bool no_error;      /* time only */
    bool chosen;        /* only the implementation that a call takes */
    bool transposed;    /* inputs lie in memory with their dimensions in reverse order */
    bool bare;          /* attributes that are not named are 0 */
    bool channels_last; /* inputs of 4 or 5 dimensions lie in memory as [N,..,C] */
} cup_bench_options;

/* Times one op and reports each implementation at each shape: on a GPU by events on its stream, on
 * a CPU by the clock. The ceiling and the report are needed. An op whose result is a view is not
 * timed, and nothing is reported. */
CUP_API cup_status cup_bench(cup_context *c, const char *op, const cup_ceiling *ceiling,
                             const cup_bench_options *options,
                             void (*report)(const cup_bench_result *result, void *user),
                             void *user);

/* Measures how `op` is fastest on a GPU at the shapes of the options (dtype, shapes, attributes and
 * channels_last are looked at), where it has several ways to do a call: implementations, inside
 * matrix products kernels, plans and algorithms of cuBLASLt, algorithms of cuDNN for convolutions,
 * cuFFT for transforms and cuSOLVER for factors. What is fastest is remembered: in this context
 * from now on, and in the file of tuning records for later ones. Calls without a choice are not
 * reported. The options and the report are needed. */
CUP_API cup_status cup_tune(cup_context *c, const char *op, const cup_bench_options *options,
                            void (*report)(const cup_tune_result *result, void *user), void *user);

/* While on, a call that could be done in several ways and was never measured on this card is
 * measured when it is first made, which takes a second or two, and remembered as cup_tune does. Off
 * at first. */
CUP_API cup_status cup_tuning(cup_context *c, bool on);

/* Puts the tuning records of `count` files together in `to`; of two for the same call the later
 * one counts. */
CUP_API cup_status cup_tuning_merge(cup_context *c, const char *const *from, int count,
                                    const char *to);

#ifdef __cplusplus
}
#endif
#endif
