/* How far results are from those of the specification. */
#ifndef CUP_PROF_COMPARE_H
#define CUP_PROF_COMPARE_H

#include "dispatch/op.h"

/* The tensor's values on the host, as a tensor that only cup__load may use; *memory is to be freed
 * with cup__free either way. False: no memory, or an error in the tensor's context. */
bool cup__on_host(cup_tensor *t, cup_tensor *host, void **memory);

/* The distance of 1 from the next number. */
double cup__epsilon(cup_dtype dtype);

/* The smallest number above 0, and the smallest size that rounds to infinity. */
double cup__smallest(cup_dtype dtype);
double cup__most(cup_dtype dtype);

/* The largest difference in units of the epsilon of what was got, relative to the size of the
 * element and of the whole, of which the part `slack` is forgiven. `note` says where it is, when
 * there is one. */
double cup__compare(const cup_tensor *want, const cup_tensor *got, double slack, char *note,
                    size_t note_size);

/* The same where the unit is at least `least`, in these ways. */
enum {
    CUP__COMPARE_ROWS = 1, /* `slack` is a part of the size of the row, along the last dimension, in
                              place of the whole's */
    CUP__COMPARE_OVERFLOWS = 2 /* what is beyond the dtype's range may be anything that is not
                                  finite */
};
double cup__compare_above(const cup_tensor *want, const cup_tensor *got, double slack, double least,
                          int ways, char *note, size_t note_size);

/* The same where `forgiven`, a number for each element in order, is taken off its error. */
double cup__compare_beyond(const cup_tensor *want, const cup_tensor *got, const double *forgiven,
                           double least, char *note, size_t note_size);

/* The same of codes, 8-bit floats, where `want` is what they are roundings of, in f64: infinite
 * where a code is not the rounding of a number within `slack` and `least` of that, else 0. */
double cup__compare_codes(const cup_tensor *want, const cup_tensor *got, double slack, double least,
                          char *note, size_t note_size);

/* Puts in place of an op's results what it says of them (`steady`), worked out in double in `c`,
 * whose tensors they are, and rounded to their dtype. Returns how many there are now; the same
 * tensors where the op says nothing, and -1 with an error in `c`. */
int cup__steady(cup_context *c, const cup__op *op, cup_tensor **out, int count);

#endif
