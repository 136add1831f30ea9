/* What the generated functions of table.c need beside op.h. */
#ifndef CUP_DISPATCH_CALL_H
#define CUP_DISPATCH_CALL_H

#include "dispatch/op.h"

#define CUP__INTS_NULL (-2)

/* Copies a list of numbers into an attribute; returns the count, or -1 when there are more than 8
 * or fewer than none, and CUP__INTS_NULL when the list is not there, which are then refused. */
int cup__take_ints(int64_t to[8], const int64_t *from, int count);

/* The context's status after a failed call; CUP_ARGUMENT when a NULL tensor came in. */
cup_status cup__call_status(cup_context *c);

#endif
