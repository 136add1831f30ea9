/* What sort and top_k share. Both work along the last axis; another one is brought there first. */
#ifndef CUP_OPS_INDEX_ORDER_H
#define CUP_OPS_INDEX_ORDER_H

#include "dispatch/op.h"

/* The dtypes that are put in order. */
#define CUP__DTYPES_ORDERED                                                                        \
    (CUP__DTYPES_FLOAT | CUP__DTYPES_INDEX | CUP__DTYPE(U8) | CUP__DTYPE(I8))

cup_status cup__need_ordered(cup__call *call, int i);

/* The first `count` of each line of x along `axis` in order, into out[0] and their places, as i64,
 * into out[1]. Plain; any strides. */
cup_status cup__order_specification(cup__call *call, int axis, int64_t count, bool descending);

/* Runs `rows` for x and results whose axis is the last one, all row-major. */
cup_status cup__order_rows(cup__call *call, int axis, bool descending,
                           cup_status (*rows)(cup__call *call, cup_tensor *x, cup_tensor *values,
                                              cup_tensor *indices, bool descending));

/* Sorts rows on the GPU: x, values and indices are row-major and of one shape. */
cup_status cup__sort_rows(cup__call *call, cup_tensor *x, cup_tensor *values, cup_tensor *indices,
                          bool descending);

/* The gradient of both: dy put back to where its elements came from. */
cup_tensor *cup__order_gradient(cup__grad *g, int axis);

#endif
