/* Calls that wait for a sum of processes that share out a model. They are recorded as they come, of
 * the whole batch, so that backward knows of nothing else. When what they lead to is to be added
 * up, they are made of the first texts, whose sum begins, and then of the others, so that the sum
 * of either goes on while something else is computed. What such a sum gives is read by texts by
 * the calls that wait next. Whoever else reads what waits has the calls made at once, whole, by way
 * of tensor/coming.h. */
#ifndef CUP_DISPATCH_HALVES_H
#define CUP_DISPATCH_HALVES_H

#include "dispatch/op.h"

struct cup__waiting;

/* A context's, from the first time on. */
typedef struct cup__halves {
    int64_t texts, first; /* of the batch, and of these those that are computed first */
    cup__storage *from[2]; /* what the batch came in, and the last sum, to be compared only */
    bool on;    /* calls may wait */
    bool taken; /* the one that is being made does */
    struct cup__waiting *list, **last; /* those that wait, in their order */
} cup__halves;

/* From here on calls of a batch x [B,..], with B from 2 on, and of delta of the same shape or NULL,
 * may wait; and not from there on, where what waits goes on waiting. */
cup_status cup__halves_begin(cup_context *c, const cup_tensor *x, const cup_tensor *delta);
void cup__halves_end(cup_context *c);

/* Whether a call is to wait, of a context that has had a beginning; then it is put off in the place
 * of its run. */
bool cup__halves_take(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                      const void *attributes, cup_tensor *const *out);
cup_status cup__halves_put(cup__call *call);

/* Bit i: row r of all results is made of row r of input i, and of inputs whose bit is not set, in a
 * call whose inputs of that kind have several rows. 0: it is not known. */
uint32_t cup__halves_by_texts(const cup__row *row, cup_tensor *const *in, int in_count,
                              const void *attributes);

/* Whether what the tensor holds waits, and is made by texts, one behind the other. */
bool cup__halves_waits(const cup_context *c, const cup_tensor *t);

/* Makes all that waits, of the first texts and then of the others, and behind each calls `behind`
 * with those of `from` and of `to`, two tensors of one shape by texts, of which from waits. */
typedef cup_status (*cup__halves_behind)(cup_tensor *from, cup_tensor *to, void *user);
cup_status cup__halves_run(cup_context *c, cup_tensor *from, cup_tensor *to,
                           cup__halves_behind behind, void *user);

#endif
