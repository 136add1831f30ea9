/* Memory that is not the device's own, and memory that others hold. */
#ifndef CUP_TENSOR_WRAP_H
#define CUP_TENSOR_WRAP_H

#include "cupola/wrap.h"
#include "tensor/tensor.h"

/* What a storage knows of memory that is the caller's. */
struct cup__foreign {
    bool read_only;
    void (*release)(void *user);
    void *user;
};

/* The memory's last use is over: its owner is told. Frees `foreign`. */
void cup__foreign_release(cup_context *c, cup__foreign *foreign);

/* Waits until no work of the device, whoever queued it, can use the hold's memory, and frees it. */
void cup__hold_free_idle(const cup_hold *hold);

#endif
