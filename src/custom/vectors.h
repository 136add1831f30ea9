/* What the CPU does with vectors. */
#ifndef CUP_CUSTOM_VECTORS_H
#define CUP_CUSTOM_VECTORS_H

#include "cupola/expr.h"
#include "custom/graph.h"

/* out[i] = function(x[0][i], ..) of floats, or of doubles when `wide`; vectors beyond the
 * function's arguments are not read. */
void cup__vector_apply(bool wide, cup__function function, void *out, const void *const x[3],
                       int64_t count);
void cup__vector_apply_wide(cup__function function, double *out, const void *const x[3],
                            int64_t count);

/* What folding begins with, folding a vector (of at least one element), each element of a vector
 * to a sum of its own, and two folded values. NaN stays NaN. */
double cup__fold_start(int fold);
double cup__vector_fold(bool wide, int fold, const void *x, int64_t count);
void cup__vector_fold_to(bool wide, int fold, double *sums, const void *x, int64_t count);
double cup__fold_two(int fold, double a, double b);

#endif
