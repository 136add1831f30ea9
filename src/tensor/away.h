/* Memory of tensors that is there only while calls use it, as that of parameters whose values
 * another process keeps. A storage that is away has no memory and its last address; who brings it
 * gives it memory elsewhere, and before a call each input finds its elements again by its
 * offset. */
#ifndef CUP_TENSOR_AWAY_H
#define CUP_TENSOR_AWAY_H

#include "tensor/tensor.h"

/* Of one storage, which owns it. */
typedef struct cup__away {
    struct cup__bringer *by; /* NULL: nobody any more */
    int number;              /* what that one calls it */
    bool here;  /* it has memory */
    bool kept;  /* that memory stays where it is */
} cup__away;

/* Brings what the inputs of a call need that is away, for all of them at once. */
typedef struct cup__bringer {
    cup_status (*bring)(struct cup__bringer *bringer, cup_tensor *const *in, int count);
    int depth;   /* calls inside of each other; what they use does not go meanwhile */
    bool paused; /* calls use what is kept alone */
} cup__bringer;

/* Around a call of a context with anything that is away; a view needs no memory. */
cup_status cup__away_begin(cup_context *c, cup_tensor *const *in, int count, bool view);
void cup__away_end(cup_context *c);

/* Fails where the memory of a tensor is not there, with the cure. */
cup_status cup__away_check(const cup_tensor *t, const char *verb);

#endif
