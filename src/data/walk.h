/* The files that a list of files and folders stands for. */
#ifndef CUP_DATA_WALK_H
#define CUP_DATA_WALK_H

#include "base/error.h"

/* Takes a file; `found` when it lay in a folder, so that it may be passed over. Returns whether it
 * was taken in *taken, which is true at first. */
typedef cup_status (*cup__visit)(cup__error *error, const char *path, bool found, bool *taken,
                                 void *user);

/* Visits the file, or all files below the folder in the order of the paths' bytes: not the hidden
 * ones, symbolic links, and folders of builds or with a checkpoint. Adds up what is passed over. */
cup_status cup__walk(cup__error *error, const char *path, cup__visit visit, void *user,
                     int64_t *skipped);

#endif
