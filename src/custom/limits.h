/* Conditions of attention's formulas that only say how far a key may be from the query's own: they
 * become limits of its window, so that what they hide is not computed. */
#ifndef CUP_CUSTOM_LIMITS_H
#define CUP_CUSTOM_LIMITS_H

#include "custom/graph.h"

/* Keys are seen from `before` in front of the query's own to `after` behind it; infinite: all. */
typedef struct cup__key_limits {
    double before, after;
} cup__key_limits;

/* What of a condition is seen: of its parts, all of which must hold, `found` takes up to `most`
 * that are limits, `count` of them, and *rest is what is left, -1 if nothing. `query` and `key` are
 * the inputs of the graph that are these, -1 where there is none. */
cup_status cup__limits_split(cup__graph *g, int condition, int query, int key, int *found,
                             int most, int *count, int *rest);

/* Such parts, the nodes `found`, and what they are made of. */
typedef struct cup__limit_parts {
    const cup__expr_node *nodes;
    int node_count;
    const int32_t *found;
    int count;
} cup__limit_parts;

/* The limits that they say together. */
cup_status cup__limits_read(const cup__limit_parts *parts, int query, int key,
                            const double *parameters, cup__error *error, cup__key_limits *out);

#endif
