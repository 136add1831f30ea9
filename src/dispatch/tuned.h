/* Implementations that were measured to be the fastest for a call, where an op has several that
 * take it. What is measured of the ways inside a matrix product stands in product_tuned.h. */
#ifndef CUP_DISPATCH_TUNED_H
#define CUP_DISPATCH_TUNED_H

#include "base/text.h"
#include "dispatch/op.h"

typedef struct cup__preferred cup__preferred;

/* The measured one; NULL: nothing was measured, or it refuses. */
const cup__impl *cup__preferred_of(cup__call *call);

/* The implementations on a GPU that take the call, in their order; returns how many. */
int cup__impls_of(const cup__call *call, const cup__impl **out, int most);

/* Measures them, which overwrites the results, and prefers the fastest from now on, in this context
 * and by the user's file in later ones. *out is NULL where there is no choice. */
cup_status cup__preferred_tune(cup__call *call, const cup__impl **out, double *us, int *count);

#endif
