/* Sums over elements of tensors, in double, which specifications spend their time with. */
#ifndef CUP_TENSOR_SUMS_H
#define CUP_TENSOR_SUMS_H

#include "tensor/tensor.h"

/* The sum of the products of `count` elements of each, `step` elements apart. */
double cup__dot(const cup_tensor *a, int64_t a_at, int64_t a_step, const cup_tensor *b,
                int64_t b_at, int64_t b_step, int64_t count);

/* Adds such elements, times a factor, to doubles. */
void cup__add_scaled(double *to, double factor, const cup_tensor *t, int64_t at, int64_t step,
                     int64_t count);

#endif
