/* Several processes of one run on this host. */
#ifndef CLI_LAUNCHER_H
#define CLI_LAUNCHER_H

#include <stdbool.h>

typedef struct launcher {
    int processes, restarts;
    bool first_plain; /* what rank 0 writes is not marked with its number */
    /* What each process does, which has the variables by then; gives its exit code. */
    int (*work)(void *user);
    void *user;
} launcher;

/* Starts them, passes on what they write and signals to them, and ends all when one has failed.
 * Returns the exit code of the first that failed, or 0. */
int launcher_run(const launcher *l);

#endif
