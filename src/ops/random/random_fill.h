/* Filling tensors with random numbers. Element i of f32 and less takes word i % 4 of block i / 4
 * of the call's Philox sequence, element i of f64 two words of block i / 2; a normal number takes
 * those of its pair, elements i and i ^ 1. All devices draw the same numbers. */
#ifndef CUP_OPS_RANDOM_RANDOM_FILL_H
#define CUP_OPS_RANDOM_RANDOM_FILL_H

#include "dispatch/op.h"

/* The kind of an op that fills, as its descriptor says: by it its attributes are read. */
enum { CUP__FILL_UNIFORM, CUP__FILL_NORMAL };

cup_status cup__random_fill_infer(cup__call *call, cup_dtype dtype, const int64_t *shape, int ndim);
cup_status cup__random_fill_specification(cup__call *call);
extern const cup__impl cup__random_fill_impls[];

#endif
