/* What ops on many small matrices share: [..,M,N], of f32 or f64, a block of a GPU each, and a
 * thread of a CPU, which computes in double. */
#ifndef CUP_OPS_LINALG_LINALG_H
#define CUP_OPS_LINALG_LINALG_H

#include "dispatch/op.h"

#define CUP__LINALG_THREADS 128

/* Checks that input 0 holds matrices whose shorter side has up to `most` rows. */
cup_status cup__need_matrices(cup__call *call, int64_t most);
/* And that they are square. */
cup_status cup__need_square(cup__call *call);

/* How one matrix is computed: what was read of the inputs stands one behind another in `work`, and
 * the results stand so from `results` on. Behind the inputs there is room for so many numbers. */
typedef struct cup__linalg {
    void (*body)(const cup__call *call, double *work);
    int64_t results, room;
} cup__linalg;

/* All matrices, in the order of their numbers or by all threads. `work`: about how many operations
 * one takes. */
cup_status cup__linalg_each(cup__call *call, const cup__linalg *how, double work, bool parallel);

/* The launch for all of them: shared memory for one, or 0 where it has no room. */
int cup__linalg_shared(const cup__call *call);

/* The launch of kernels that have a matrix by its columns (columns.cuh). */
typedef struct cup__linalg_columns {
    int lanes;    /* of a warp, for a column */
    int threads;  /* of a block */
    int distance; /* between columns, in numbers */
    int across;   /* between columns of the shorter side */
} cup__linalg_columns;

/* For columns of so many numbers, so many of which are worked on at a time. */
cup__linalg_columns cup__linalg_columns_of(int64_t column, int64_t shorter, int64_t at_a_time);

/* Launches one block a matrix, with `room` numbers for each in shared memory or, where they do not
 * fit, in memory of its own. The arguments are those of all kernels by columns: input, up to three
 * results, that memory, rows, columns, and the distances. */
cup_status cup__linalg_launch(cup__call *call, const char *file, const char *kernel,
                              const cup__linalg_columns *by, int64_t room);

/* Each matrix the other way round. */
cup_tensor *cup__linalg_turned(cup_context *c, cup_tensor *t);

#endif
