/* How rows are shared out on the GPU: the knobs of kernels/rows.cuh. */
#ifndef CUP_DISPATCH_ROWS_H
#define CUP_DISPATCH_ROWS_H

#include "cuda/cuda.h"
#include "dispatch/op.h"

typedef struct cup__row_plan {
    int vec, group, pieces, threads;
    bool fits; /* a row fits into the group's registers; else it is taken in several spans */
} cup__row_plan;

/* The widest vector of `t`'s elements, up to `most` elements and 16 bytes, in which a row of
 * `width` of them that starts at the tensor's beginning or a whole number of rows later can be
 * read. A tensor that is NULL allows anything. */
int cup__row_vec(const cup_tensor *t, int64_t width, int most);

/* Groups for rows of `width` elements taken in vectors of `vec`, with at most `each` elements a
 * thread where the group is a warp or less, and `each_wide` where it is more. */
cup__row_plan cup__plan_rows(int64_t width, int vec, int each, int each_wide);

/* A result or an input's data, NULL for a tensor that is not there. */
static inline void *cup__data_of(const cup_tensor *t)
{
    return t ? t->data : NULL;
}

#endif
