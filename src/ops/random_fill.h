/* Filling tensors with random numbers. Element i of f32 and less takes word i % 4 of block i / 4
 * of the call's Philox sequence, element i of f64 two words of block i / 2; a normal number takes
 * those of its pair, elements i and i ^ 1. All devices draw the same numbers. */
#ifndef CUP_OPS_RANDOM_FILL_H
#define CUP_OPS_RANDOM_FILL_H

#include "ops/op.h"

/* What to fill with: numbers in [first, first + second), or of mean `first` and deviation
 * `second`. */
typedef struct cup__random_fill {
    cup_dtype dtype;
    bool normal;
    double first, second;
} cup__random_fill;

cup_status cup__random_fill_infer(cup__call *call, cup_dtype dtype, const int64_t *shape, int ndim);
cup_status cup__random_fill_specification(cup__call *call, const cup__random_fill *fill);
cup_status cup__random_fill_cpu(cup__call *call, const cup__random_fill *fill);
cup_status cup__random_fill_cuda(cup__call *call, const cup__random_fill *fill);

#endif
