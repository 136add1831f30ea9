/* What turns pairs of features by their position, for ops that do it on the way. */
#ifndef CUP_OPS_ROPE_ROPE_H
#define CUP_OPS_ROPE_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#define CUP__ROPE_BASE 10000.0 /* where none is given */

/* What frequencies follow from, and what cosines and sines are multiplied by, each field 0 for its
 * default: see rope in src/dispatch/ops.def. */
typedef struct cup__rope_rule {
    double base, factor, low, high, amplitude;
    int64_t original;
    bool yarn, untruncated;
} cup__rope_rule;

/* Whether such a rule can be; the base may be 0. */
bool cup__rope_rule_is_good(const cup__rope_rule *rule);

/* What cosines and sines are multiplied by. */
double cup__rope_amplitude(const cup__rope_rule *rule);

/* What the position is multiplied by for pair i of so many, in radians. */
double cup__rope_frequency(const cup__rope_rule *rule, int64_t i, int64_t pairs);

/* Those of all pairs, at most ROPE_PAIRS; in radians, or in whole turns. */
void cup__rope_frequencies(const cup__rope_rule *rule, int64_t pairs, bool radians, double *to);

#endif
