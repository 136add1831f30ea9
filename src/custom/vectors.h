/* What the CPU does with a vector of floats. */
#ifndef CUP_CUSTOM_VECTORS_H
#define CUP_CUSTOM_VECTORS_H

#include "cupola/expr.h"
#include "custom/graph.h"

/* out[i] = function(x[i], y[i], z[i]); vectors beyond the function's arguments are not read. */
void cup__vector_apply(cup__function function, float *out, const float *x, const float *y,
                       const float *z, int64_t count);

/* What folding begins with, folding a vector (of at least one element), each element of a vector
 * to a sum of its own, and two folded values. NaN stays NaN. */
double cup__fold_start(int fold);
double cup__vector_fold(int fold, const float *x, int64_t count);
void cup__vector_fold_to(int fold, double *sums, const float *x, int64_t count);
double cup__fold_two(int fold, double a, double b);

#endif
