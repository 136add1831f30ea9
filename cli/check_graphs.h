/* cupola check --graphs, --graph and --gradients. */
#ifndef CLI_CHECK_GRAPHS_H
#define CLI_CHECK_GRAPHS_H

#include "cli/options.h"
#include "dispatch/op.h"

/* Checks `count` graphs of a seed or, where `graph` is not NULL, that one. Returns an exit code. */
int check_graphs(cli_call *call, cup_context *c, uint64_t seed, int64_t count, const char *graph);

/* Checks the gradients of these ops' samples, and of `count` random calls; or, where `gradient` is
 * not NULL, those of that call. */
int check_gradients(cli_call *call, cup_context *c, const cup__row *const *rows, int row_count,
                    uint64_t seed, int64_t count, const char *gradient);

#endif
