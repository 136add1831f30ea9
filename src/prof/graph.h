/* Random graphs of public ops, drawn from a seed, and run with their gradients in any context. */
#ifndef CUP_PROF_GRAPH_H
#define CUP_PROF_GRAPH_H

#include "base/text.h"
#include "tensor/tensor.h"

#define CUP__GRAPH_NODES 64

/* What a node does; `in` are numbers of nodes before it, -1: left out. */
typedef struct cup__graph_node {
    int kind; /* 0: a leaf, whose gradient is wanted */
    int in[4];
    int64_t number; /* where a slice begins, how far a leaf lies off the start of its memory */
    int ndim;
    int64_t size[3];
    bool gone; /* its place is taken by its first input */
} cup__graph_node;

typedef struct cup__graph {
    uint64_t seed;
    int count;
    cup__graph_node node[CUP__GRAPH_NODES];
} cup__graph;

/* What came of one run: values of the nodes that nothing uses, and gradients of the leaves, both
 * NULL for other nodes. They belong to the scope that is open. */
typedef struct cup__graph_run {
    cup_tensor *value[CUP__GRAPH_NODES], *gradient[CUP__GRAPH_NODES];
    /* In double and without noise: a value or a gradient on the way is infinite in `dtype`, so that
     * there what follows may be anything, as infinity less infinity. */
    bool overflows;
} cup__graph_run;

/* Draws graph `number` of a seed: 3 to 12 ops. */
void cup__graph_draw(uint64_t seed, int64_t number, cup__graph *out);

/* Runs it with leaves rounded to `dtype` and held in `hold`, and random gradients of its ends. With
 * `noise` each value, and what flows back along each edge, is moved by up to a quarter of what its
 * op may be wrong by; differently for each noise. */
cup_status cup__graph_execute(const cup__graph *g, cup_context *c, cup_dtype dtype, cup_dtype hold,
                              int noise, cup__graph_run *out);

/* How many epsilons an op's result, or what flows back to its inputs, may be wrong by: as its
 * tolerance says, or where sums of n terms take the random walk of f32, the root of n. */
double cup__graph_roundings(const cup__graph *g, int node, cup_dtype dtype);

/* Whether the node is an op whose place its first input can take; and whether a value of it is an
 * end of the graph. */
bool cup__graph_can_drop(const cup__graph *g, int node);
bool cup__graph_is_end(const cup__graph *g, int node);

/* "x [3,20]; linear_gelu(x, w [8,20] at 3, -) [3,8]", without what no end needs. */
void cup__graph_text(const cup__graph *g, cup__text *out);

#endif
