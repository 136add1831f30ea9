/* cupola/facts.h: what this library finds on the machine it runs on: GPUs, libraries, environment
 * variables; and the ops it has. None of these needs a context, unless they are asked of one. All
 * words that are given are the library's own and live as long as it, unless it is said otherwise.
 */
#ifndef CUPOLA_FACTS_H
#define CUPOLA_FACTS_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many GPUs the driver offers this process; 0 where there is none or no driver. What says so,
 * "libcuda.so.1 was not found", is written into `why` of `bytes` bytes, "" where there are GPUs.
 * `why` may be NULL. */
CUP_API int cup_gpu_count(char *why, size_t bytes);

/* One GPU. */
typedef struct cup_gpu {
    int index;            /* N of "cuda:N" */
    int major, minor;     /* its compute capability */
    int multiprocessors;
    int64_t memory_bytes;
    char name[128];       /* "NVIDIA H200" */
    char arch[16];        /* what kernels are compiled for: "sm_90a" */
    bool usable;          /* by this library */
    char why[512];        /* a sentence that says why not; "" when it is */
} cup_gpu;

/* The facts of GPU `index`, from 0, without opening it. CUP_NO_DEVICE, with `why` set, where there
 * is no such GPU or it cannot be used; what is known of it is set all the same. */
CUP_API cup_status cup_gpu_look(int index, cup_gpu *out);

/* The facts of the GPU a context computes on; false where it computes on a CPU. */
CUP_API bool cup_gpu_of(const cup_context *c, cup_gpu *out);

/* What a kind of GPU can do, as NVIDIA's data sheets say: the products of matrices without
 * sparsity, added up in f32, at the clock that the card is sold with. */
typedef struct cup_card {
    const char *name;      /* "h200", as people say it */
    const char *driver;    /* "NVIDIA H200", as the driver does, and cup_gpu */
    const char *arch;      /* "sm_90a", as cup_gpu has it */
    int multiprocessors;
    double memory_bytes, bytes_per_second;            /* of its memory */
    double f32, tf32, half, float8; /* operations a second; 0: not in hardware; half is f16, and
                                       bf16 where the card has it */
} cup_card;

/* The cards that are known, from 0 on; false, with nothing set, behind the last one. And the one of
 * either name, in capitals or not. */
CUP_API bool cup_card_at(int index, cup_card *out);
CUP_API bool cup_card_find(const char *name, cup_card *out);

/* Whether the context's device multiplies matrices of the dtype in hardware, so that a model is
 * well trained in it. Where it does not, ops take the dtype all the same, and compute by way of
 * another, or in plain arithmetic. On a CPU that is so of f32 and f64; on a GPU of f32, f64 and
 * f16, of bf16 from compute capability 8.0 on, of the 8-bit floats from 8.9 on. */
CUP_API bool cup_device_computes_in(const cup_context *c, cup_dtype dtype);

/* How many threads ops on a CPU use where a context does not say it: what CUP_THREADS says, else
 * all that the process may use. */
CUP_API int cup_threads(void);

/* Libraries that are looked for at run time. */
typedef enum cup_library {
    CUP_LIBRARY_DRIVER = 0,   /* NVIDIA's driver, libcuda */
    CUP_LIBRARY_NVRTC = 1,    /* the compiler of kernels */
    CUP_LIBRARY_CUBLASLT = 2, /* matrix products on a GPU, where it is the fastest */
    CUP_LIBRARY_BLAS = 3,     /* matrix products on a CPU, and factors */
    CUP_LIBRARY_NCCL = 4,     /* tensors between GPUs, where several processes train */
    CUP_LIBRARY_CUDNN = 5,    /* convolutions on a GPU, where it was measured to be the fastest */
    CUP_LIBRARY_CUFFT = 6,    /* Fourier transforms of long lines on a GPU */
    CUP_LIBRARY_CUSOLVER = 7  /* factors of large matrices on a GPU */
} cup_library;

typedef struct cup_library_facts {
    const char *name;       /* "CUDA driver" */
    const char *needed_for; /* what is missing without it */
    bool found;
    int version;            /* 13000 is 13.0; 0: not known, as of a BLAS */
    const char *text;       /* where it was found; else where it was looked for */
    const char *cure;       /* what to do where it was not found */
} cup_library_facts;

/* Looks for the library, the first time in a process that it is asked for, and says what was
 * found. Not finding it is no failure; CUP_ARGUMENT for a value that is no library. */
CUP_API cup_status cup_library_look(cup_library library, cup_library_facts *out);

/* An environment variable that this library reads. */
typedef struct cup_variable {
    const char *name;    /* "CUP_DEVICE" */
    const char *value;   /* what holds now: that of the environment, else the default */
    const char *standard; /* the default, "" where there is none */
    const char *words;   /* what it does */
} cup_variable;

/* The variable of a number from 0 on; false, with nothing set, behind the last one. `value` lives
 * until the environment is changed. */
CUP_API bool cup_variable_at(int index, cup_variable *out);

/* Holds the variables' values, and the files and names in them, against what they may be, since a
 * value that nobody asks for goes unnoticed. Each thing that is wrong is reported as a sentence
 * with its cure, which lives during the report; `counts` is false where the rest of what it is
 * about is used all the same, as of a file of tuning records with a bad line. `report` may be NULL.
 * CUP_ARGUMENT where any other thing is wrong. */
CUP_API cup_status cup_variables_check(void (*report)(const char *sentence, bool counts,
                                                      void *user),
                                       void *user);

/* An op, as its row in the table of ops says. */
typedef struct cup_op_facts {
    const char *name;       /* "layernorm": its call is cup_layernorm */
    const char *inputs;     /* "x, gamma?, beta?": ? behind those that may be NULL */
    const char *attributes; /* "float eps" */
    const char *results;    /* "y; mean, rstd": behind ; those that only backward sees */
    const char *words;      /* what it computes */
    bool is_public;         /* it has a call; others are parts of public ones */
    bool has_gradient;
    bool has_second_derivatives; /* cup_gradients_recorded goes through it */
    bool is_view;           /* its result is the memory of its input */
} cup_op_facts;

/* The op of a number from 0 on, in the order of the table; false, with nothing set, behind the last
 * one. And the number of the op of a name; -1 when there is none. */
CUP_API bool cup_op_at(int index, cup_op_facts *out);
CUP_API int cup_op_find(const char *name);

/* One way in which an op is computed. */
typedef struct cup_op_way {
    const char *name; /* as CUP_IMPL and cup_bench take it */
    bool is_cuda;     /* on a GPU, else on a CPU */
} cup_op_way;

/* The ways of an op, numbered from 0 on, best first: the first one that takes a call computes it,
 * unless another was measured to be faster. Behind them stands the plain specification, which takes
 * every call. False, with nothing set, behind the last one. */
CUP_API bool cup_op_way_at(int op, int index, cup_op_way *out);

#ifdef __cplusplus
}
#endif
#endif
