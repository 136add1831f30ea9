/* How much memory this process may still take: of the machine, its control group (v1 and v2) with
 * all above it, and its limits. Who takes more is killed without a word, or fails late. */
#ifndef CUP_BASE_ROOM_H
#define CUP_BASE_ROOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct cup__room {
    int64_t free;     /* bytes; INT64_MAX where nothing is known */
    int64_t most;     /* what the tightest bound allows in all, this much of it free */
    const char *what; /* that bound: "the machine", "the control group", "ulimit -v", ... */
} cup__room;

/* Looks in /proc and /sys/fs/cgroup. */
void cup__room_find(cup__room *out);

/* For tests: what stands before the paths of these; NULL: nothing. Borrowed. */
void cup__room_root(const char *root);

#endif
