/* Random graphs on a device, forward and with all gradients, held against the same in double. */
#ifndef CUP_PROF_CHECK_GRAPH_H
#define CUP_PROF_CHECK_GRAPH_H

#include "prof/graph.h"

typedef struct cup__graph_result {
    const char *graph;  /* its text; shrunk when it failed */
    const char *repeat; /* "seed:number:dtype:3,5", with the nodes that were dropped */
    const char *note;
    cup_dtype dtype;
    double error, tolerance; /* of the value or gradient that is nearest to or furthest above what
                                it may be wrong by, in epsilons of the dtype */
    bool passed;
} cup__graph_result;

typedef void (*cup__graph_report)(const cup__graph_result *result, void *user);

/* Graphs 0 to count - 1 of the seed, in f32, bf16 and f16 by turns. On a dry GPU only their kernels
 * are compiled. */
cup_status cup__check_graphs(cup_context *c, uint64_t seed, int64_t count,
                             cup__graph_report report, void *user);

/* The one that `repeat` says. */
cup_status cup__check_graph(cup_context *c, const char *repeat, cup__graph_report report,
                            void *user);

#endif
