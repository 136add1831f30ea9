/* The ops of random graphs, for those who draw them and those who run them. */
#ifndef CUP_PROF_GRAPH_KINDS_H
#define CUP_PROF_GRAPH_KINDS_H

#include "prof/graph.h"

typedef enum cup__graph_kind {
    LEAF,
    GELU, SILU, TANH, SIGMOID, SCALE,
    ADD, SUB, MUL,
    LINEAR, LINEAR_GELU, LINEAR_SILU, LINEAR_SWIGLU, LINEAR_ADD,
    MATMUL,
    LAYERNORM, RMSNORM,
    SUM, MEAN,
    SOFTMAX, LOG_SOFTMAX,
    SLICE, TRANSPOSE, RESHAPE, CONCAT,
    KINDS
} cup__graph_kind;

/* By kind: the op's name. */
extern const char *const cup__graph_names[KINDS];

/* Whether an end of the graph comes from the node. */
bool cup__graph_is_needed(const cup__graph *g, int node);

/* The next number of [-1, 1). */
double cup__graph_unit(uint64_t *state);

#endif
