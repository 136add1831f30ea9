/* What the functions that are made of ops share. */
#ifndef CUP_NN_FUNCTIONS_H
#define CUP_NN_FUNCTIONS_H

#include "cupola/functions.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

/* Whether there is a context without an error and a tensor; fails otherwise. */
bool cup__function_begin(cup_context *c, const char *name, const cup_tensor *x);
/* The axis of a tensor of so many dimensions, from 0; fails when there is none of that number. */
bool cup__function_axis(cup_context *c, const char *name, int ndim, int axis, int *out);
/* A view of `size` elements from `start` on along an axis, all of the others. */
cup_tensor *cup__part(cup_context *c, cup_tensor *x, int axis, int64_t start, int64_t size);
/* A number of a dtype. */
cup_tensor *cup__single(cup_context *c, cup_dtype dtype, double value);

#endif
