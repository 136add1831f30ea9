/* What ops on many small matrices share: [..,N,N], of f32 or f64, a block of a GPU each, and a
 * thread of a CPU, which computes in double. */
#ifndef CUP_OPS_LINALG_LINALG_H
#define CUP_OPS_LINALG_LINALG_H

#include "dispatch/op.h"

#define CUP__LINALG_THREADS 128

/* Checks that input 0 holds square matrices that are not too large. */
cup_status cup__need_square(cup__call *call);

/* Matrix number i of a call: reads [rows, columns] of it from any strides, and writes a result. */
void cup__matrix_load(const cup_tensor *t, int64_t i, double *to);
void cup__matrix_store(cup_tensor *t, int64_t i, const double *from);

/* One matrix: what was read of the inputs stands one behind another, the result in the place of the
 * last one. */
typedef void (*cup__linalg_body)(const cup__call *call, double *work);

/* The body for all matrices, in the order of their numbers or by all threads. */
cup_status cup__linalg_each(cup__call *call, cup__linalg_body body, bool parallel);

/* The launch for all of them: shared memory for one, or 0 where it has no room. */
int cup__linalg_shared(const cup__call *call);

#endif
