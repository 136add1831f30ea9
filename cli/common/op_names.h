/* Names of ops on the command line. */
#ifndef CLI_OP_NAMES_H
#define CLI_OP_NAMES_H

#include <stdbool.h>

/* Refuses a name that no op has. Returns an exit code. */
int op_names_check(const char *const *names, int count);

/* Whether the op of this number (see cup_op_at) is among the names. Without names: whether it is
 * one that users call, or any when `internal`. */
bool op_is_named(int op, const char *const *names, int count, bool internal);

#endif
