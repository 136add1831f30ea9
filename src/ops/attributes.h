/* Generated from src/ops/ops.def by `make gen`: the attributes of each op as a struct,
 * the descriptors, and the prototypes of the internal ops. */
#ifndef CUP_OPS_ATTRIBUTES_H
#define CUP_OPS_ATTRIBUTES_H

#include "cupola/ops.h"
#include "ops/op.h"

typedef enum cup__op_id {
    CUP__OP_add,
    CUP__OP_mul,
    CUP__OP_gelu,
    CUP__OP_gelu_grad,
    CUP__OP_full,
    CUP__OP_copy,
    CUP__OP_reshape,
    CUP__OP_broadcast,
    CUP__OP_sum,
    CUP__OP_COUNT
} cup__op_id;

extern const cup__op cup__op_add;

extern const cup__op cup__op_mul;

extern const cup__op cup__op_gelu;

extern const cup__op cup__op_gelu_grad;
cup_tensor *cup__gelu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_full;
typedef struct cup__full_attributes {
    cup_dtype dtype;
    int64_t shape[8];
    int shape_count;
    double value;
} cup__full_attributes;

extern const cup__op cup__op_copy;

extern const cup__op cup__op_reshape;
typedef struct cup__reshape_attributes {
    int64_t shape[8];
    int shape_count;
} cup__reshape_attributes;

extern const cup__op cup__op_broadcast;
typedef struct cup__broadcast_attributes {
    int64_t shape[8];
    int shape_count;
} cup__broadcast_attributes;

extern const cup__op cup__op_sum;
typedef struct cup__sum_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__sum_attributes;

#endif
