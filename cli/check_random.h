/* cupola check --random and --repeat. */
#ifndef CLI_CHECK_RANDOM_H
#define CLI_CHECK_RANDOM_H

#include "cli/options.h"
#include "cupola/prof.h"
#include "prof/random.h"

typedef struct check_random_given {
    const char *repeat; /* the call to make; NULL: `calls` are drawn */
    const cup__row *const *rows;
    int row_count;
    int64_t calls, first; /* first: the number of the first that is made */
    int64_t kernels;      /* about how many are compiled for them; 0: any number */
    uint64_t seed;
    const char *device; /* as it was given, for the command that repeats a call */
} check_random_given;

/* Makes the calls and prints what is wrong. Returns an exit code. */
int check_random(cli_call *call, cup_context *c, const check_random_given *given);

#endif
