/* Copying elements between strided places. */
#ifndef CUP_OPS_SHAPE_COPY_H
#define CUP_OPS_SHAPE_COPY_H

#include "dispatch/op.h"

cup_status cup__copy_cuda(cup__call *call);

/* Copies `from` into `to`, of the same shape and dtype and any strides. */
cup_status cup__copy_to(cup_context *c, cup_tensor *to, cup_tensor *from);

#endif
