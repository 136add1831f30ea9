/* cupola/kernel.h: CUDA kernels of your own on the tensors of a context, compiled at run time,
 * cached on disk, and checked before each launch.
 *
 *     static const char text[] =
 *         "extern \"C\" __global__ void axpy(float *y, const float *x, float a, long long n)\n"
 *         "{\n"
 *         "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
 *         "    if (i < n)\n"
 *         "        y[i] += a * x[i];\n"
 *         "}\n";
 *     cup_kernel *k = cup_kernel_new(c, CUP_OPTIONS(cup_kernel_source,
 *         .name = "axpy", .text = text, .entry = "axpy",
 *         .arguments = "f32 *y, const f32 *x, f32 a, i64 n"));
 *     cup_kernel_grid grid = {sizeof grid, .blocks = {(n + 255) / 256}, .threads = {256}};
 *     cup_kernel_launch(k, &grid,
 *                       (cup_kernel_argument[]){CUP_TENSOR_ARGUMENT(y), CUP_TENSOR_ARGUMENT(x),
 *                                               CUP_NUMBER_ARGUMENT(2.5),
 *                                               CUP_INTEGER_ARGUMENT(n)}, 4);
 *
 * A launch goes to the context's stream, in order with the ops before and after it; it is not
 * recorded for gradients. */
#ifndef CUPOLA_KERNEL_H
#define CUPOLA_KERNEL_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cup_kernel cup_kernel;

typedef struct cup_kernel_source {
    size_t size;           /* see CUP_OPTIONS */
    const char *name;      /* for messages and the cache: letters, digits, - and _ */
    const char *text;      /* CUDA C++; may include the library's own "dtype.cuh" and others */
    const char *entry;     /* an extern "C" __global__ function of it */
    /* What the entry takes, separated by commas: a dtype and *, with const before it when the
     * kernel only reads, for a tensor ("const bf16 *x"); f32, f64, i32 or i64 for a number ("i64
     * n"). `any *x` takes tensors of every dtype. Names are for messages, and may be left out. */
    const char *arguments;
    const char *defines;   /* "TILE=64 VEC=4": whole numbers, defined when compiling; or NULL */
} cup_kernel_source;

/* Compiles the source for the context's GPU, or takes what was compiled before from the cache, and
 * holds the arguments against what the entry takes. The compiler's words are part of the error.
 * The context must outlive the kernel. */
CUP_API cup_kernel *cup_kernel_new(cup_context *c, const cup_kernel_source *source);
CUP_API void cup_kernel_free(cup_kernel *kernel);

/* What the compiler made of it. */
typedef struct cup_kernel_facts {
    int registers;     /* a thread */
    int spilled_bytes; /* of local memory, a thread */
    int shared_bytes;  /* a block, not counting what a launch adds */
    int threads_most;  /* a block */
} cup_kernel_facts;
CUP_API cup_status cup_kernel_ask(cup_kernel *kernel, cup_kernel_facts *facts);

/* Sizes of 0 mean 1; no blocks at all when blocks[0] is 0. */
typedef struct cup_kernel_grid {
    size_t size;      /* see CUP_OPTIONS */
    int64_t blocks[3];
    int threads[3];   /* a block */
    int shared_bytes; /* a block, beyond what the source declares */
} cup_kernel_grid;

typedef enum cup_argument_kind {
    CUP_ARGUMENT_KIND_TENSOR = 0,
    CUP_ARGUMENT_KIND_INTEGER = 1,
    CUP_ARGUMENT_KIND_NUMBER = 2
} cup_argument_kind;

typedef struct cup_kernel_argument {
    cup_argument_kind kind;
    cup_tensor *tensor;
    int64_t integer;
    double number;
} cup_kernel_argument;
#define CUP_TENSOR_ARGUMENT(t) {CUP_ARGUMENT_KIND_TENSOR, (t), 0, 0}
#define CUP_INTEGER_ARGUMENT(n) {CUP_ARGUMENT_KIND_INTEGER, NULL, (n), 0}
#define CUP_NUMBER_ARGUMENT(x) {CUP_ARGUMENT_KIND_NUMBER, NULL, 0, (x)}

/* Launches it. Checked before: the grid, the block and the shared memory against what the card and
 * the kernel allow; the arguments' number, kinds and ranges against those declared; that tensors
 * are of this context, of the declared dtype and in row-major order. */
CUP_API cup_status cup_kernel_launch(cup_kernel *kernel, const cup_kernel_grid *grid,
                                     const cup_kernel_argument *arguments, int count);

/* The median time of a launch in microseconds, after a warm-up. It is launched many times, so what
 * it changes is changed many times. */
CUP_API cup_status cup_kernel_time(cup_kernel *kernel, const cup_kernel_grid *grid,
                                   const cup_kernel_argument *arguments, int count,
                                   double *microseconds);

#ifdef __cplusplus
}
#endif
#endif
