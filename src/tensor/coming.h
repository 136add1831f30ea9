/* Memory whose values are on their way, as sums over processes that go on beside what the context
 * computes. The first call that reads or writes such memory, or lets go of it, ends it: what the
 * context does from then on waits for the values. */
#ifndef CUP_TENSOR_COMING_H
#define CUP_TENSOR_COMING_H

#include "tensor/tensor.h"

/* Stands at the head of what its maker knows of it. `end` is called once and frees it. */
typedef struct cup__coming {
    cup_status (*end)(struct cup__coming *coming);
    cup__storage *to;         /* takes the values, between these two addresses */
    const char *low, *high;
    cup__storage *from;       /* is read meanwhile, a reference; or NULL */
    struct cup__coming *next; /* on the context's list */
} cup__coming;

/* The memory of `to` takes values that are made of those of `from`, which may be NULL. Other parts
 * of that memory may take others. */
void cup__coming_begin(cup__coming *coming, cup_tensor *from, cup_tensor *to);
/* Takes it back without its end, as its maker sees to the values. */
void cup__coming_forget(cup_context *c, cup__coming *coming);

/* Ends it, and what is on its way to any of the tensors, some of which may be NULL; and all there
 * is. */
cup_status cup__coming_end(cup_context *c, cup__coming *coming);
cup_status cup__coming_end_of(cup_context *c, cup_tensor *const *tensors, int count);
/* The same of what is read meanwhile, which is about to change. */
cup_status cup__coming_end_from(cup_context *c, cup_tensor *const *tensors, int count);
cup_status cup__coming_end_all(cup_context *c);

#endif
