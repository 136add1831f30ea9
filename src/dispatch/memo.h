/* What a context remembers of a call on a GPU, for all that are equal in what a choice may depend
 * on: op, dtypes, shapes, strides, the alignment of memory, attributes, hidden results, precision.
 * A call is described and looked up once; then its implementation is known, and where that one
 * keeps its launch, all but the memory that it is aimed at. */
#ifndef CUP_DISPATCH_MEMO_H
#define CUP_DISPATCH_MEMO_H

#include "dispatch/op.h"

typedef struct cup__memo cup__memo;

/* Does the call once more, with what is kept; `memo->impl` has done it before. */
typedef cup_status cup__again(cup__call *call, cup__memo *memo);

struct cup__memo {
    const cup__impl *impl; /* that takes the call; NULL: not known yet */
    cup__way tuned;        /* as cup__call has it */
    cup__again *again;     /* in place of the implementation's `run`; NULL: that one runs */
    void *kept;            /* of the implementation's: one piece of memory, or NULL */
    const void *owner;     /* tells who keeps it */
    int count;
    int64_t number[];      /* what the call is told apart by */
};

/* The place of a call, which stays where it is as long as the context. NULL: nothing is remembered
 * of it, because it has one implementation or too many inputs, or may be measured later. */
cup__memo *cup__memo_of(const cup__call *call);

/* Keeps a copy of an implementation's bytes in place of what was kept; NULL without memory. */
void *cup__memo_keep(cup__memo *memo, const void *owner, const void *bytes, size_t size);

/* Forgets all choices, because others may be better now. */
void cup__memo_forget(cup_context *c);

/* An attribute as numbers, of which one that is no whole number has its bits; returns how many.
 * Which random numbers are drawn makes no difference. */
int cup__attribute_numbers(const cup__attribute *a, const void *attributes, int64_t out[8]);

#endif
