/* How the processes of a run know of each other. */
#ifndef CUP_COMM_LAUNCHED_H
#define CUP_COMM_LAUNCHED_H

#include "comm/socket.h"
#include "cupola/comm.h"

/* Where they meet. */
typedef struct cup__meeting {
    cup__endpoint place;
    char file[4096]; /* instead, where it is not "" */
    uint64_t job;    /* the same for all processes of a run, and another for other runs */
    int more;        /* ports behind the place's that rank 0 may take where that one is taken */
} cup__meeting;

/* As cup_launched_look; `meeting` may be NULL. */
cup_status cup__launched(cup__error *error, cup_launched *out, cup__meeting *meeting);

/* From an address that a program gives. */
cup_status cup__meeting_at(cup__error *error, const char *address, cup__meeting *out);

#endif
