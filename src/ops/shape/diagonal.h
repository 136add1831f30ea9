/* What eye, tril and triu share: matrices and a diagonal of them. */
#ifndef CUP_OPS_SHAPE_DIAGONAL_H
#define CUP_OPS_SHAPE_DIAGONAL_H

#include "cuda/cuda.h"
#include "dispatch/op.h"
#include "ops/shape/diagonal_call.cuh"

/* A call over the matrices that lie in y's last two dimensions. */
diagonal_call cup__diagonal_call(const cup_tensor *y, const cup_tensor *x, int64_t diagonal);

/* Launches an entry with the knobs of diagonal.cuh and `upper`. */
cup_status cup__diagonal_launch(cup__call *call, const char *source, const char *entry,
                                const diagonal_call *argument, bool upper);

#endif
