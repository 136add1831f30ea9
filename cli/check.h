/* The parts of cupola check. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "cli/common/options.h"
#include "cupola/prof.h"
#include "prof/random.h"

/* --random and --repeat. */
typedef struct check_random_given {
    const char *repeat; /* the call to make; NULL: `calls` are drawn */
    const cup__row *const *rows;
    int row_count;
    int64_t calls, first; /* first: the number of the first that is made */
    bool small;           /* none as large as those of models */
    int64_t kernels;      /* about how many are compiled for them; 0: any number */
    uint64_t seed;
    const char *device, *precision; /* as they were given, for the command that repeats a call */
} check_random_given;

/* Makes the calls and prints what is wrong. Returns an exit code. */
int check_random(cli_call *call, cup_context *c, const check_random_given *given);

/* --graphs and --graph: checks `count` graphs of a seed or, where `graph` is not NULL, that one.
 * Returns an exit code. */
int check_graphs(cli_call *call, cup_context *c, uint64_t seed, int64_t count, const char *graph);

/* --gradients: checks the gradients of these ops' samples, and of `count` random calls; or, where
 * `gradient` is not NULL, those of that call. */
int check_gradients(cli_call *call, cup_context *c, const cup__row *const *rows, int row_count,
                    uint64_t seed, int64_t count, const char *gradient);

#endif
