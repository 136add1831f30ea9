/* How exact an implementation is at a benchmark's call: against the specification where that is
 * affordable; else against the same call in double on the same device; and where an op is not for
 * double, against the specification of the first rows, if it goes by rows, or of shapes that are
 * cut down: sizes are halved, equal ones together, the length of rows last. */
#ifndef CUP_PROF_ACCURACY_H
#define CUP_PROF_ACCURACY_H

#include "prof/check.h"

typedef struct cup__accuracy cup__accuracy;

/* What is right for the call; NULL where nothing can be said. The timed call must have its results,
 * and its scope must stay open. */
cup__accuracy *cup__accuracy_new(const cup__call *timed, const cup__sample *sample,
                                 cup_dtype dtype);
void cup__accuracy_free(cup__accuracy *a);

/* The error of an implementation as in cup_check; NAN where it refuses a smaller call; and where
 * it was measured: the timed shapes themselves, or those that were cut down. */
double cup__accuracy_of(cup__accuracy *a, cup_context *c, const cup__impl *impl);
const char *cup__accuracy_shapes(const cup__accuracy *a);

#endif
