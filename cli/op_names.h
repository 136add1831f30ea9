/* Names of ops on the command line. */
#ifndef CLI_OP_NAMES_H
#define CLI_OP_NAMES_H

#include "dispatch/op.h"

/* Refuses a name that no op has. Returns an exit code. */
int op_names_check(const char *const *names, int count);

/* Whether the op is among the names. Without names: whether it is one that users call, or any
 * when `internal`. */
bool op_is_named(const cup__row *row, const char *const *names, int count, bool internal);

#endif
