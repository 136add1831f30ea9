/* The inside of a tensor: a strided view of reference-counted device memory. */
#ifndef CUP_TENSOR_TENSOR_H
#define CUP_TENSOR_TENSOR_H

#include <string.h>

#include "cupola/tensor.h"
#include "tensor/context.h"

/* Of memory that is the caller's, see tensor/wrap.h. */
typedef struct cup__foreign cup__foreign;

typedef struct cup__storage {
    cup_context *context;
    void *data;
    size_t bytes;
    int refs;
    struct cup__storage *next; /* among the context's spare ones */
    uint32_t version; /* counts changes in place, so that backward sees a saved value was lost */
    uint32_t recorded; /* the tape's generation in which a recorded call wrote it */
    cup__foreign *foreign; /* NULL: the memory is the device's own */
    bool pinned;           /* it is the host's, see cup__tensor_pinned */
    struct cup__away *away; /* NULL: the memory is always there; see tensor/away.h */
    struct cup__coming *coming; /* one of those on their way; NULL: all values are there; see
                                   tensor/coming.h */
} cup__storage;

struct cup_tensor {
    cup_context *context;
    cup__storage *storage;
    void *data; /* of the first element */
    ptrdiff_t offset; /* bytes of that behind the storage's, which may move: see tensor/away.h */
    int64_t shape[CUP_MAX_DIMS];
    int64_t stride[CUP_MAX_DIMS]; /* in elements; 0 where a dimension is broadcast */
    int64_t count;
    cup_dtype dtype;
    int ndim;
    bool contiguous;
    bool is_parameter;
    int refs;              /* the scope or its keeper, the tape, views in the making */
    int scope;             /* index of the scope that owns it, -1 when kept, or the one below */
    /* What recorded it: the number of a node, which is 0 for a leaf, the tape's generation the
     * number is good for, and which result of the node this is. */
    uint32_t node, generation;
    int output;
    uint32_t first_use; /* of a parameter: see cup__grad_watch */
    cup_tensor *grad;
    cup_tensor *previous, *next; /* in the list of its scope, of the kept or of the held ones */
};

/* Of a tensor in no scope any more, which something else still holds: it stands on the context's
 * list of held ones, so that every tensor stands on one list and ends with its context. */
#define CUP__SCOPE_NONE (-2)

/* A shape and a type, before there is memory. */
typedef struct cup__shape {
    cup_dtype dtype;
    int ndim;
    int64_t size[CUP_MAX_DIMS];
} cup__shape;

/* A new tensor in the innermost scope, elements not set. The tag is a literal. */
cup_tensor *cup__tensor_make(cup_context *c, const cup__shape *shape, const char *tag);

/* The same in memory of the host, which a GPU's ops use over the bus, full of zeros. GPU contexts
 * only. */
cup_tensor *cup__tensor_pinned(cup_context *c, const cup__shape *shape, const char *tag);

/* A view of `base`'s memory: `offset` elements from its first one, strides in elements. */
cup_tensor *cup__tensor_view(cup_tensor *base, const cup__shape *shape, const int64_t *stride,
                             int64_t offset);

/* A tensor on a storage, which it takes a reference to: from `data` on, strides in elements. */
cup_tensor *cup__tensor_on(cup__storage *storage, void *data, const cup__shape *shape,
                           const int64_t *stride);

/* The struct of a new storage, not set; NULL when there is no host memory. The other drops a
 * reference. */
cup__storage *cup__storage_struct(cup_context *c);
void cup__storage_drop(cup__storage *storage);

/* Makes a new row-major tensor lie in memory in another order of its dimensions, which is given
 * as digits, outermost first. */
void cup__tensor_order(cup_tensor *t, const char *order);

/* Moves a tensor of the innermost scope to the scope outside of it; leaves others alone. */
void cup__tensor_hand_out(cup_tensor *t);

/* Puts a tensor whose scope is gone into the innermost one, which takes over the reference. */
void cup__tensor_adopt(cup_tensor *t);

/* Whether its memory is the caller's and may not be written. */
bool cup__tensor_read_only(const cup_tensor *t);

/* Whether what two tensors span in memory meets; without memory they do not. */
bool cup__tensor_overlap(const cup_tensor *s, const cup_tensor *t);

/* To be asked before a caller's tensor is changed in place: read-only memory is refused, and a
 * recorded result, because gradients would go on as if it still came from what it was computed
 * from. */
cup_status cup__tensor_change(cup_tensor *t, const char *verb);

void cup__tensor_retain(cup_tensor *t);
void cup__tensor_release(cup_tensor *t);

/* Ends what the list that a tensor stands on holds of it: its scope, or its keeper. */
void cup__tensor_disown(cup_tensor *t);

/* Here, so that it is written where it goes: each call of an op wants several. */
static inline cup__shape cup__shape_of(const cup_tensor *t)
{
    cup__shape shape = {.dtype = t->dtype, .ndim = t->ndim};
    memcpy(shape.size, t->shape, sizeof shape.size);
    return shape;
}

bool cup__shape_equal(const cup__shape *a, const cup__shape *b); /* sizes, not dtypes */
bool cup__dtype_is_float(cup_dtype dtype);

/* Checks a shape from outside: ndim, negative sizes, overflow of count and bytes. */
cup_status cup__shape_check(cup__error *error, const cup__shape *shape, int64_t *count);

/* "[32,64] bf16", for messages. Returns `out`. */
#define CUP__SHAPE_TEXT 208
const char *cup__shape_text(const cup__shape *shape, char out[CUP__SHAPE_TEXT]);
const char *cup__tensor_text(const cup_tensor *t, char out[CUP__SHAPE_TEXT]);

/* One element as double, and back, for any dtype, at an offset in elements from t->data. CPU
 * contexts only. Rounds to nearest even. */
double cup__load_any(const cup_tensor *t, int64_t offset);
void cup__store_any(cup_tensor *t, int64_t offset, double value);

/* Doubles and floats here, because specifications and comparisons spend their time with them. */
static inline __attribute__((always_inline)) double cup__load(const cup_tensor *t, int64_t offset)
{
    return t->dtype == CUP_F64   ? ((const double *)t->data)[offset]
           : t->dtype == CUP_F32 ? (double)((const float *)t->data)[offset]
                                 : cup__load_any(t, offset);
}

static inline __attribute__((always_inline)) void cup__store(cup_tensor *t, int64_t offset,
                                                             double value)
{
    if (t->dtype == CUP_F64)
        ((double *)t->data)[offset] = value;
    else
        cup__store_any(t, offset, value);
}

/* Converts `count` contiguous elements between a dtype and f32 or f64, vectorised for f32. */
void cup__load_f32(float *to, const void *from, cup_dtype dtype, int64_t count);
void cup__store_f32(void *to, const float *from, cup_dtype dtype, int64_t count);

/* Rounds floats to what a dtype holds. */
void cup__round_f32(float *x, cup_dtype dtype, int64_t count);

/* The offset in elements of a flat row-major index. */
int64_t cup__offset_within(const cup_tensor *t, int64_t index);
static inline int64_t cup__offset_of(const cup_tensor *t, int64_t index)
{
    return t->contiguous ? index : cup__offset_within(t, index);
}
/* The value of that element. */
double cup__element(const cup_tensor *t, int64_t index);

#endif
