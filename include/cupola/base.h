/* cupola/base.h: the context, errors, scopes and logging that every other header stands on.
 *
 * Ownership, once for the whole library:
 *   1. A tensor belongs to the innermost open scope; closing the scope frees it.
 *   2. cup_keep takes a tensor out of its scope; it is then yours, until cup_tensor_free.
 *   3. Anything else made by a call ending in _new or _load is yours, until the matching _free,
 *      which may be given NULL. Such a call returns NULL when it fails.
 *   4. Inputs are only borrowed; a call never frees what you pass in.
 *   5. cup_context_free frees all that is left of a context, kept tensors included.
 *
 * Errors, once for the whole library:
 *   A call that makes a tensor returns it, or NULL; a NULL tensor as input gives NULL as output.
 *   Other calls that can fail return a cup_status. The context keeps the first error, with a
 *   sentence, until cup_error_clear; while it is set, calls that make tensors do nothing and
 *   return NULL, so a whole block can be checked once at its end.
 *
 * Threads: a context is used by one thread at a time. Contexts are independent of each other.
 */
#ifndef CUPOLA_BASE_H
#define CUPOLA_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUP_VERSION_MAJOR 0
#define CUP_VERSION_MINOR 2
#define CUP_VERSION_PATCH 0

#if defined(__GNUC__)
#define CUP_API __attribute__((visibility("default")))
#else
#define CUP_API
#endif

/* One row a status: name, value that never changes, words. */
#define CUP_STATUS_LIST(X)                                                                         \
    X(OK, 0, "ok")                                                                                 \
    X(ARGUMENT, 1, "invalid argument")                                                             \
    X(SHAPE, 2, "shapes do not fit")                                                               \
    X(DTYPE, 3, "dtypes do not fit")                                                               \
    X(MEMORY, 4, "out of memory")                                                                  \
    X(NO_DEVICE, 5, "no usable device")                                                            \
    X(DRIVER, 6, "the device or its driver failed")                                                \
    X(COMPILE, 7, "a kernel did not compile")                                                      \
    X(IO, 8, "a file could not be read or written")                                                \
    X(FORMAT, 9, "a file's content is not valid")                                                  \
    X(UNSUPPORTED, 10, "not supported")                                                            \
    X(STATE, 11, "not possible now")                                                               \
    X(INTERRUPTED, 12, "interrupted")                                                              \
    X(INTERNAL, 13, "a fault inside the library")                                                  \
    X(PEER, 14, "another process failed or did not come")

typedef enum cup_status {
#define CUP_STATUS_ENUM(name, value, words) CUP_##name = value,
    CUP_STATUS_LIST(CUP_STATUS_ENUM)
#undef CUP_STATUS_ENUM
} cup_status;

typedef struct cup_context cup_context;
typedef struct cup_tensor cup_tensor;

/* The words of a status, for example "out of memory". Never NULL. */
CUP_API const char *cup_status_text(cup_status status);

/* The library's version, "major.minor.patch". */
CUP_API const char *cup_version(void);

/* Structs of options begin with their size, so that programs and libraries of different versions
 * understand each other. CUP_OPTIONS makes a pointer to one, in C, of the fields that are named:
 *
 *     cup_cross_entropy(c, logits, targets, -1,
 *                       CUP_OPTIONS(cup_cross_entropy_options, .label_smoothing = 0.1));
 *
 * NULL options, and a field that is 0 or was not there in the caller's version, mean the default.
 * A size of 0 is refused, as are fields that are set and that this library does not know. Options
 * inside a struct that has a size need none of their own. */
#define CUP_OPTIONS(type, ...) (&(type){.size = sizeof(type), __VA_ARGS__})

/* The same where fields are set one by one, and for C++, which has no CUP_OPTIONS:
 *
 *     cup_loop_options o = CUP_DEFAULTS(cup_loop_options);
 *     o.folder = "run"; */
#ifdef __cplusplus
#define CUP_DEFAULTS(type) ([] { type made{}; made.size = sizeof made; return made; }())
#else
#define CUP_DEFAULTS(type) ((type){.size = sizeof(type)})
#endif

/* How a context is made. All zero means the default of each field. */
typedef struct cup_options {
    size_t size;           /* of this struct, see CUP_OPTIONS */
    const char *device;    /* "auto" (the default), "cpu", "cuda" or "cuda:N" */
    uint64_t seed;         /* of the random numbers; 0 is a seed like any other */
    int threads;           /* of the CPU implementations; 0: what CUP_THREADS says, else all that
                              the process may use. They are one for all contexts of a process: the
                              context that was made last says how many */
    int64_t memory_limit;  /* bytes of device memory the context may hold; 0: no limit */
    bool deterministic;    /* the same bits run after run on the same device with the same
                              libraries, or an error where that cannot be. Ops are so in any case,
                              whatever the number of threads; this also does without libraries
                              that are not known to be, such as a BLAS on the CPU, without what was
                              tuned by timing, and between GPUs without sums in NCCL's order */
    double memory_share;   /* the same limit as a part of the device's memory, 0.5 for half of it;
                              0: no limit. The lower of both limits counts */
    bool debug;            /* watch for misuse, as CUP_DEBUG=1 asks of every context: see
                              cup_debug_mark */
} cup_options;

/* Makes a context on one device; NULL options mean all defaults.
 * Returns NULL only when there is no host memory. Any other failure is the new context's first
 * error: ask cup_error, then free the context as usual. "auto" takes the first usable GPU, else
 * the CPU; cup_device_text says which one and why. */
CUP_API cup_context *cup_context_new(const cup_options *options);

/* Waits for the device and frees the context and every tensor of it. NULL is allowed. */
CUP_API void cup_context_free(cup_context *c);

/* One line for people: the device in use and why, for example
 * "cuda:0, NVIDIA H200, 139.7 GiB" or "cpu, 2 threads (no GPU: libcuda.so.1 was not found)". */
CUP_API const char *cup_device_text(const cup_context *c);

/* True when the context computes on a GPU. */
CUP_API bool cup_device_is_cuda(const cup_context *c);

/* Waits until all work given to the device is done; reports what went wrong meanwhile. */
CUP_API cup_status cup_synchronize(cup_context *c);

/* The first error since the context was made or cleared; a NULL context gives CUP_MEMORY. */
CUP_API cup_status cup_error(const cup_context *c);

/* The first error's sentence: the op, the shapes and the cure. "" when there is none. It lives
 * until the next call on the context. */
CUP_API const char *cup_error_text(const cup_context *c);

/* Makes this the context's error, unless it has one, as the library's own calls do: for layers, ops
 * and callbacks of your own. The words are those of printf; they should name the thing and say the
 * cure. Returns the status. */
CUP_API cup_status cup_fail(cup_context *c, cup_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* Forgets the error, so that the context can be used again. */
CUP_API void cup_error_clear(cup_context *c);

/* Opens a scope inside the current one; tensors made from now on belong to it. */
CUP_API void cup_scope_open(cup_context *c);

/* Opens a scope in which nothing is recorded, whatever is computed in it. It is closed as other
 * scopes are, also after an error; recording is then what it was before, and what the tape holds
 * stays. */
CUP_API void cup_scope_open_without_grad(cup_context *c);

/* Closes the innermost scope and frees its tensors. Closing the outermost scope also drops what
 * the tape recorded. Without an open scope it does nothing. */
CUP_API void cup_scope_close(cup_context *c);

/* Closes the innermost scope, but hands one tensor of it to the scope outside, and returns that
 * tensor. What the tape recorded stays. For functions that make their result in many steps. */
CUP_API cup_tensor *cup_scope_return(cup_context *c, cup_tensor *t);

/* The same with several tensors; those that are NULL are passed over. The scope is closed in any
 * case; the status is that of the context, so that a function can end with it. */
CUP_API cup_status cup_scope_return_all(cup_context *c, cup_tensor *const *tensors, int count);

/* Takes the tensor out of its scope and returns it; free it with cup_tensor_free. One that was
 * kept already, or NULL, is returned as it is. */
CUP_API cup_tensor *cup_keep(cup_tensor *t);

/* From now on asks `stop` before each op of the context, in the thread that calls it: true fails
 * the op with CUP_INTERRUPTED, so that long work ends soon, for example when a signal came. It must
 * make no call on the context. NULL: nobody is asked, as in a new context. A training run whose
 * hooks have a `stop` asks that one instead, until its end. */
CUP_API void cup_stop_when(cup_context *c, bool (*stop)(void *user), void *user);

/* Sets the seed of the context's random numbers and starts their sequence again. */
CUP_API void cup_seed(cup_context *c, uint64_t seed);

/* Starts step `step` of the random sequence: the numbers that follow depend on the seed, the
 * step and their order within the step only, so that a resumed run draws the same ones. */
CUP_API void cup_random_step(cup_context *c, uint64_t step);

/* Goes on in the sequence as if so many calls of ops that draw numbers had been made: for a process
 * that computes what follows on what others compute, as a stage of a model. */
CUP_API void cup_random_skip(cup_context *c, int64_t calls);

/* How f32 matrix products, convolutions and attention may be computed on a GPU. Sums stay in f32;
 * other dtypes, other ops and the CPU are not concerned. A context begins with what CUP_PRECISION
 * says, else with "highest".
 * "highest": f32. An element of a product is off by about as much as a plain sum of f32 is, 8 +
 * sqrt(k) units of 2^-24 of the sum of the sizes of its k terms, whatever size they are of and
 * whatever else is in a row or column. Attention and its gradients: 40 epsilons (2^-23) of an
 * element and the root mean square of all; where a query sees one key its gradient is 0.
 * "high": what is multiplied is rounded to 10 bits of fraction, as tf32 has: 2^-10 of that sum.
 * "medium": it may be rounded to bf16: 2^-7 of that sum; attention and convolutions as "high". In
 * these two, elements below 2^-29 of the largest in their row or column, in x, the weight or dy of
 * a convolution, or in q or k of attention may keep fewer bits, and so may those below 2^-17 of the
 * largest in v or in the gradient of attention's result, and probabilities below 2^-14. */
CUP_API cup_status cup_precision(cup_context *c, const char *precision);

/* With CUP_DEBUG=1, or `debug` in its options, a context watches how it is used, at the price of
 * speed. These give CUP_STATE and a sentence:
 *   - a tensor used after its scope was closed or it was freed, by any call; the sentence names the
 *     op that made it. What the tape still holds counts as used too late all the same. The last
 *     65536 tensors that ended are known;
 *   - a call while another thread is in one of the same context: it waits for that and fails;
 *   - the first op whose result has a NaN; the sentence says which inputs were not finite before.
 *     Results in a captured graph are not looked at; a cup_loop captures none then.
 * Released memory of tensors is filled with 0xff, a NaN in every float. cup_context_free tells the
 * log what was kept and not freed.
 * Calls of ops are numbered from 1 in what is said. The text, of up to 63 bytes, is copied and
 * said as well, from this call on until the next; NULL: none. CUP_DEBUG_HERE gives file and line.
 * Both do nothing where nothing is watched. */
CUP_API void cup_debug_mark(cup_context *c, const char *text);
#define CUP_DEBUG_HERE(c) cup_debug_mark(c, __FILE__ ":" CUP_DEBUG_TEXT(__LINE__))
#define CUP_DEBUG_TEXT(line) CUP_DEBUG_TEXT_OF(line)
#define CUP_DEBUG_TEXT_OF(line) #line

/* What the library has to say goes to this hook instead of stderr; NULL restores stderr. What is
 * said is set by CUP_LOG. The hook is one for all contexts, and may be called from any thread; the
 * line, without its end, lives during the call, which must make none on a context. */
typedef void (*cup_log_hook)(void *user, const char *line);
CUP_API void cup_log_to(cup_log_hook hook, void *user);

#ifdef __cplusplus
}
#endif
#endif
