/* Structs of options that callers of other versions may have made. */
#ifndef CUP_BASE_OPTIONS_H
#define CUP_BASE_OPTIONS_H

#include "base/error.h"

/* Fills `to`, of `own` bytes, with a caller's options, which may be NULL: all defaults. Both begin
 * with their size; that of `to` is `own`. What the caller's version did not have is 0; fails where
 * the caller has set what this version does not have, or gives no size. `name` begins the
 * sentence. */
cup_status cup__options_take(cup__error *error, const char *name, void *to, size_t own,
                             const void *from);

#endif
