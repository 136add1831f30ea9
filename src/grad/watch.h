/* Hearing of gradients that are complete while backward goes on. */
#ifndef CUP_GRAD_WATCH_H
#define CUP_GRAD_WATCH_H

#include "tensor/tensor.h"

/* Backward walks the nodes from the last one down. Before it begins, `first_use` of each of these
 * parameters becomes the number of the first node that may use it, 0 where none does, and then
 * `begins` is called, which may be NULL. When `passed` is called with a node's number, the
 * gradients of those whose first use is that number or a later one are complete, and of those
 * with 0. */
typedef struct cup__grad_watch {
    cup_tensor *const *parameters;
    int count;
    cup_status (*begins)(void *user);
    cup_status (*passed)(uint32_t node, void *user);
    void *user;
} cup__grad_watch;

/* A number that follows from what was recorded: which calls, in which order, of how many inputs. */
uint64_t cup__tape_hash(const cup_context *c);

/* Has the context's next backward watched, and no other; NULL: not that either. */
void cup__grad_watch_set(cup_context *c, const cup__grad_watch *watch);

/* To be called where a sum between processes begins, forward and backward, that goes on beside what
 * is computed meanwhile: backward then leaves gradients of parameters for behind the next of
 * them. */
void cup__tape_hides(cup_context *c);

/* cup_backward from a loss whose gradient is not 1 but `slope`, of its shape and dtype; NULL: 1. */
cup_status cup__backward(cup_context *c, cup_tensor *loss, cup_tensor *slope);

#endif
