/* One row through a block of a transformer as one kernel. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_H
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_H

#include "dispatch/attributes.h"
#include "dispatch/op.h"

/* The inputs of transformer_read, in its order; delta and biases may be NULL. */
typedef enum cup__read_input {
    CUP__READ_X,
    CUP__READ_KEYS,
    CUP__READ_VALUES,
    CUP__READ_POSITION,
    CUP__READ_NORM1,
    CUP__READ_QKV,
    CUP__READ_OUT,
    CUP__READ_NORM2,
    CUP__READ_UP,
    CUP__READ_DOWN,
    CUP__READ_DELTA,
    CUP__READ_NORM1_BIAS,
    CUP__READ_QKV_BIAS,
    CUP__READ_OUT_BIAS,
    CUP__READ_NORM2_BIAS,
    CUP__READ_UP_BIAS,
    CUP__READ_DOWN_BIAS,
    CUP__READ_INPUTS
} cup__read_input;

/* Whether there is such a kernel for these inputs on the context's device, and it is worth it. */
bool cup__transformer_read_takes(cup_context *c, cup_tensor **in,
                                 const cup__transformer_read_attributes *attributes);

cup_status cup__transformer_read_specification(cup__call *call);

#endif
