/* Some elements of a large matrix product, by the specification: what takes too long for all of
 * them. */
#ifndef CUP_PROF_SAMPLED_H
#define CUP_PROF_SAMPLED_H

#include "dispatch/op.h"

/* Holds a call that has run against the specification on the CPU, at 576 elements of each result:
 * those of 24 rows and columns of one matrix, the first and last of them and others by chance, as
 * the same call with these rows and columns alone. Returns how many elements were held, 0 where the
 * op is no product, changes an input or is not of f64, or -1 where one of them is wrong, which the
 * note says. Copies tensors as large as the call's within the scope that is open. */
int64_t cup__sampled_hold(const cup__call *done, char *note, size_t note_size);

#endif
