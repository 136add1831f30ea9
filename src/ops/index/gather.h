/* What gather, index_select, scatter_add and unsort share: tensors as [outer, size, inner] along an
 * axis. */
#ifndef CUP_OPS_INDEX_GATHER_H
#define CUP_OPS_INDEX_GATHER_H

#include "dispatch/op.h"

#define CUP__DTYPES_MOVED (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(I8))

/* The fields of an op that only moves elements of its first input, where its file has them all
 * under their usual names. */
#define CUP__MOVER                                                                                 \
    .infer = infer, .specification = specification, .gradient = gradient, .composed = gradient,    \
    .impls = impls, .samples = samples, .bench = bench, .in_dtypes = {CUP__DTYPES_MOVED}

typedef struct cup__along {
    int axis;
    int64_t outer, size, inner;
} cup__along;

/* The tensor, of `like`'s shape, along an axis that may count from the end. */
cup__along cup__along_of(const cup_tensor *t, int axis);

/* `indices` of a descriptor whose one attribute is the axis: input 1 names places along it. */
int64_t cup__indices_along(cup_tensor *const *in, int i, const void *attributes);

/* Checks that input i holds an index for each element of a tensor like input j but for its size
 * along the axis. */
cup_status cup__need_indices(cup__call *call, int i, int j, int axis);

/* Index number `at`; fails when it is not below `size`. */
cup_status cup__index_at(cup__call *call, const cup_tensor *indices, int64_t at, int64_t size,
                         int64_t *out);

/* Copies an element of any dtype exactly. */
void cup__move_element(cup_tensor *to, int64_t at, const cup_tensor *from, int64_t offset);

/* Launches a kernel of gather.cu with a thread for each of `count` elements of [.., length, inner];
 * `along` is the other tensor, the ids are input 1. */
cup_status cup__gather_launch(cup__call *call, const char *entry, const cup_tensor *x,
                              cup_tensor *y, cup__along along, int64_t length, int vec,
                              int64_t count);

#endif
