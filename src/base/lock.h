/* A folder that one process at a time may write into. The lock is the kernel's, on a file of the
 * folder that names its holder, so that it ends with the process, however that ends. */
#ifndef CUP_BASE_LOCK_H
#define CUP_BASE_LOCK_H

#include "base/error.h"

typedef struct cup__lock {
    int handle;
    char *path; /* NULL: not held */
} cup__lock;

/* Locks a folder that is there; when another holds it, waits up to `seconds`, then fails with
 * CUP_STATE and says who. Where a file system has no locks it goes on without. */
cup_status cup__lock_take(cup__error *error, const char *folder, double seconds, cup__lock *out);
/* What tells the lock of a folder from all others, the same for all who see the folder, also from
 * other hosts; 0: nobody has locked it. */
int64_t cup__lock_look(const char *folder);
/* Does nothing to one that is all zero. */
void cup__lock_drop(cup__lock *lock);

#endif
