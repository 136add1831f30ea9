/* How exact an implementation is at a benchmark's shape. The specification is slow, so it computes
 * the first rows alone where an op goes by rows; else large shapes are cut down for it: sizes are
 * halved, equal ones together, the length of rows last. */
#ifndef CUP_PROF_ACCURACY_H
#define CUP_PROF_ACCURACY_H

#include "prof/check.h"

typedef struct cup__accuracy cup__accuracy;

/* What the specification says; NULL where it cannot say anything at a size it can manage. */
cup__accuracy *cup__accuracy_new(const cup__row *row, const cup__sample *sample, cup_dtype dtype);
void cup__accuracy_free(cup__accuracy *a);

/* The error of an implementation as in cup_check; NAN where it refuses the smaller call. */
double cup__accuracy_of(const cup__accuracy *a, cup_context *c, const cup__impl *impl);
const char *cup__accuracy_shapes(const cup__accuracy *a);

#endif
