/* What the generated functions of table.c need beside op.h. */
#ifndef CUP_DISPATCH_CALL_H
#define CUP_DISPATCH_CALL_H

#include "dispatch/op.h"

#define CUP__INTS_NULL (-2)

/* Copies a list of numbers into an attribute; returns the count, or -1 when there are more than 8
 * or fewer than none, and CUP__INTS_NULL when the list is not there, which are then refused. */
int cup__take_ints(int64_t to[8], const int64_t *from, int count);

/* As cup__options_take, with failures in the context, which may be NULL; whether it was done. */
bool cup__take_options(cup_context *c, const char *name, void *to, size_t own, const void *from);

/* What cup__op_call does of a context: plainly, or where it is watched, or where what is not finite
 * is looked for (dispatch/finite.h). */
cup_tensor *cup__op_plain(cup_context *c, const cup__row *row, cup_tensor *const *in, int in_count,
                          const void *attributes, cup_tensor **out);
cup_tensor *cup__op_watched(cup_context *c, const cup__row *row, cup_tensor *const *in,
                            int in_count, const void *attributes, cup_tensor **out);
cup_tensor *cup__op_traced(cup_context *c, const cup__row *row, cup_tensor *const *in,
                           int in_count, const void *attributes, cup_tensor **out);

/* Runs what was begun and allocated, by what fits it best. */
cup_status cup__call_run_chosen(cup__call *call);

/* Whether inputs that `promotes` names have several dtypes; the call with all of them in the dtype
 * that holds their numbers. */
bool cup__inputs_unlike(const cup__row *row, cup_tensor *const *in, int in_count);
cup_tensor *cup__op_promoted(cup_context *c, const cup__row *row, cup_tensor *const *in,
                             int in_count, const void *attributes, cup_tensor **out);

/* The context's status after a failed call; CUP_ARGUMENT when a NULL tensor came in. */
cup_status cup__call_status(cup_context *c);

#endif
