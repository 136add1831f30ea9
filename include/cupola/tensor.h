/* cupola/tensor.h: arrays of up to 8 dimensions on the context's device, and views of them. */
#ifndef CUPOLA_TENSOR_H
#define CUPOLA_TENSOR_H

#include <stdio.h>

#include "cupola/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUP_MAX_DIMS 8

/* One row an element type: name, bytes, value that never changes. */
#define CUP_DTYPE_LIST(X)                                                                          \
    X(F32, 4, 0, "f32")                                                                            \
    X(F64, 8, 1, "f64")                                                                            \
    X(F16, 2, 2, "f16")                                                                            \
    X(BF16, 2, 3, "bf16")                                                                          \
    X(I64, 8, 4, "i64")                                                                            \
    X(I32, 4, 5, "i32")                                                                            \
    X(U8, 1, 6, "u8")                                                                              \
    X(BOOL, 1, 7, "bool")                                                                          \
    X(I8, 1, 8, "i8")                                                                              \
    X(F8E4M3, 1, 9, "f8e4m3")                                                                      \
    X(F8E5M2, 1, 10, "f8e5m2")

typedef enum cup_dtype {
#define CUP_DTYPE_ENUM(name, bytes, value, text) CUP_##name = value,
    CUP_DTYPE_LIST(CUP_DTYPE_ENUM)
#undef CUP_DTYPE_ENUM
} cup_dtype;

/* What stands behind a layer that multiplies. SWIGLU makes a linear one twice as wide, and
 * silu(gate) times value of the halves. */
typedef enum cup_activation {
    CUP_ACTIVATION_NONE = 0,
    CUP_ACTIVATION_RELU = 1,
    CUP_ACTIVATION_GELU = 2,
    CUP_ACTIVATION_SILU = 3,
    CUP_ACTIVATION_SWIGLU = 4,
    CUP_ACTIVATION_TANH = 5,
    CUP_ACTIVATION_SIGMOID = 6
} cup_activation;

/* What stands around an image: zeros, the image turned round at its edges, which do not come twice,
 * its edges over and over again, or its other end. */
typedef enum cup_padding_mode {
    CUP_PADDING_MODE_ZEROS = 0,
    CUP_PADDING_MODE_REFLECT = 1,
    CUP_PADDING_MODE_REPLICATE = 2,
    CUP_PADDING_MODE_CIRCULAR = 3
} cup_padding_mode;

/* The type's name ("bf16") and its size in bytes; "?" and 0 for a value that is no dtype. */
CUP_API const char *cup_dtype_name(cup_dtype dtype);
CUP_API int64_t cup_dtype_size(cup_dtype dtype);

/* Finds a type by name; CUP_ARGUMENT when there is none. */
CUP_API cup_status cup_dtype_find(const char *name, cup_dtype *out);

/* A list of whole numbers among options; CUP_INTS(2, 2) makes one in C. Borrowed for the call. */
typedef struct cup_ints {
    const int64_t *values;
    int count;
} cup_ints;
#define CUP_INTS(...)                                                                              \
    ((cup_ints){(const int64_t[]){__VA_ARGS__},                                                    \
                (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))})

/* A tensor of the given sizes [shape[0],..,shape[ndim-1]] whose elements are not set.
 * ndim 0 makes a scalar; a size of 0 makes an empty tensor. */
CUP_API cup_tensor *cup_tensor_new(cup_context *c, cup_dtype dtype, int ndim,
                                   const int64_t *shape);

/* The same, with elements copied from host memory in row-major order. */
CUP_API cup_tensor *cup_tensor_from(cup_context *c, cup_dtype dtype, int ndim,
                                    const int64_t *shape, const void *data);

/* Frees a tensor that was kept; NULL is allowed. Its memory lives on while views or the tape use
 * it. */
CUP_API void cup_tensor_free(cup_tensor *t);

/* Copies all elements, in row-major order, to or from host memory of exactly `bytes` bytes; another
 * number fails with CUP_ARGUMENT. Reading waits for the device; what was to be written may be
 * changed or freed when writing returns. Gradients know nothing of either. */
CUP_API cup_status cup_tensor_read(cup_tensor *t, void *data, size_t bytes);
CUP_API cup_status cup_tensor_write(cup_tensor *t, const void *data, size_t bytes);

/* The one element of a tensor of one element, as double; NAN and an error in the context when it
 * has more. Waits for the device. */
CUP_API double cup_tensor_item(cup_tensor *t);

/* A copy of the tensor in another context, which may be on another device, by way of the host. It
 * leads nowhere back: no gradient flows through it. Waits for the device. */
CUP_API cup_tensor *cup_tensor_to(cup_context *c, cup_tensor *t);

/* What a tensor is. A negative dimension counts from the end; out of range gives 0. */
CUP_API cup_context *cup_tensor_context(const cup_tensor *t);
CUP_API cup_dtype cup_tensor_dtype(const cup_tensor *t);
CUP_API int cup_tensor_ndim(const cup_tensor *t);
CUP_API int64_t cup_tensor_size(const cup_tensor *t, int dimension);
CUP_API int64_t cup_tensor_stride(const cup_tensor *t, int dimension); /* in elements */
CUP_API int64_t cup_tensor_count(const cup_tensor *t);                 /* of elements */
CUP_API bool cup_tensor_is_contiguous(const cup_tensor *t);            /* in row-major order */

/* "[32,64] bf16", for messages, written into `text` of `bytes` bytes and returned. */
CUP_API const char *cup_tensor_text(const cup_tensor *t, char *text, size_t bytes);

/* The address of the first element, in the device's memory, for as long as the tensor is there; of
 * a view the others follow at its strides. NULL may be that of a tensor without elements. On a GPU
 * what fills it may not be done yet. cup_tensor_hold keeps it for others. */
CUP_API void *cup_tensor_data(cup_tensor *t);

/* A tensor and its name, both borrowed: what files and models speak in. */
typedef struct cup_named {
    const char *name;
    cup_tensor *tensor;
} cup_named;

/* Prints the shape, the dtype and the elements, long dimensions shortened. */
CUP_API cup_status cup_tensor_print(cup_tensor *t, FILE *file);

#ifdef __cplusplus
}
#endif
#endif
