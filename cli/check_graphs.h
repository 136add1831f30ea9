/* cupola check --graphs and --graph. */
#ifndef CLI_CHECK_GRAPHS_H
#define CLI_CHECK_GRAPHS_H

#include "cli/options.h"
#include "cupola/tensor.h"

/* Checks `count` graphs of a seed or, where `graph` is not NULL, that one. Returns an exit code. */
int check_graphs(cli_call *call, cup_context *c, uint64_t seed, int64_t count, const char *graph);

#endif
