/* Some elements of a large product, convolution or call of attention, by the specification: what
 * takes too long for all of them. */
#ifndef CUP_PROF_SAMPLED_H
#define CUP_PROF_SAMPLED_H

#include "dispatch/op.h"

/* Holds a call that has run in f64 against the specification on the CPU. Of each result of a
 * product these are 576 elements, in 24 rows and columns of one matrix, the first and last of them
 * and others by chance; of a convolution and the gradient of its input three rows of an image in a
 * few channels, of that of the weight some pairs of channels; of attention six queries, where a
 * query's result follows from the keys before it or from all: each as a call of the same op with
 * what these elements are made of. `before` is y as it was of a product in place, NULL for others.
 * Returns how many elements were held, 0 where the op is none of these, or -1 where one of them is
 * wrong, which the note says. Copies tensors as large as the call's within the open scope. */
int64_t cup__sampled_hold(const cup__call *done, cup_tensor *before, char *note, size_t note_size);

/* What the ways to do so share. */

/* Places along an axis; NULL where t is. */
cup_tensor *cup__sampled_select(cup_tensor *t, const int64_t *places, int64_t count, int axis);

/* Brings the inputs of a small call, does it by its specification, and holds `got` against its
 * first result. Returns how many elements there are, 0 on failure, -1 where one is wrong. */
int64_t cup__sampled_compare(const cup__row *row, cup_context *cpu, cup_tensor *const *in,
                             int count, const void *attributes, cup_tensor *got, char *note,
                             size_t note_size);

int64_t cup__sampled_conv(const cup__call *done, cup_context *cpu, char *note, size_t size);
int64_t cup__sampled_attention(const cup__call *done, cup_context *cpu, char *note, size_t size);

#endif
