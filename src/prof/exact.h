/* A timed call once more in double, on its own device and with its own inputs: what its results are
 * held against where the specification would take too long. That double is right there is what the
 * check has shown at smaller shapes, and the specification at some elements of some ops. */
#ifndef CUP_PROF_EXACT_H
#define CUP_PROF_EXACT_H

#include "dispatch/op.h"

typedef struct cup__exact cup__exact;

/* Computes it. NULL, without an error in the context: the op is not for double, or has no
 * implementation but the dtype's, or there is no memory for it. The tensors belong to the scope
 * that is open. */
cup__exact *cup__exact_new(const cup__call *timed);

/* The error of an implementation at the call, as in cup_check; NAN where it fails, infinite where
 * the specification says otherwise than double. */
double cup__exact_error(cup__exact *e, const cup__impl *impl);
void cup__exact_free(cup__exact *e);

#endif
