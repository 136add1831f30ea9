/* Rows in groups, for layers of experts: where each row stands when those of a group lie together.
 * All sizes follow from shapes, so that a step can be captured; how many rows a group has stays on
 * the device. */
#ifndef CUP_NN_EXPERTS_H
#define CUP_NN_EXPERTS_H

#include "cupola/tensor.h"

/* M rows in G groups. Those of a group keep their order; those of none are last. */
typedef struct cup__grouping {
    cup_tensor *order;  /* [M] i64: the row that stands at each place */
    cup_tensor *place;  /* [M] i64: the place at which each row stands */
    cup_tensor *ends;   /* [G] i64: the place before which each group ends */
    cup_tensor *begins; /* [G] f64: the place at which it begins */
    cup_tensor *counts; /* [G] f64 */
} cup__grouping;

/* By the group of each row, keys [M], which is at least 0; from `groups` on it is none. */
cup_status cup__group_rows(cup_context *c, cup_tensor *keys, int64_t groups, cup__grouping *out);

/* The rows of x [A,W] that ids [B] name, of which none is missing. Their gradient is not searched
 * for: `back` [A] or [A,K] says to which of the B rows each row of x has gone, and `keep`, of that
 * shape and a float, or NULL, what each of these is multiplied with. */
cup_tensor *cup__rows_taken(cup_context *c, cup_tensor *x, cup_tensor *ids, cup_tensor *back,
                            cup_tensor *keep);

/* sum over k of weight[n,k] rows[n K + k], in the dtype of rows [N K,W]; weight is [N,K]. */
cup_tensor *cup__rows_weighed(cup_context *c, cup_tensor *rows, cup_tensor *weight);

/* A formula of tensors. */
cup_tensor *cup__formula(cup_context *c, const char *inputs, const char *parameters,
                         const char *text, cup_tensor *const *in, const double *numbers);

#endif
