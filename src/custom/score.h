/* A formula as attention takes it. */
#ifndef CUP_CUSTOM_SCORE_H
#define CUP_CUSTOM_SCORE_H

#include "custom/expr.h"
#include "custom/limits.h"
#include "ops/attention/attention_formula.h"

#define CUP__SCORE_NODES_MOST 256 /* of a formula with its derivatives: the CPU keeps all of them */
#define CUP__SCORE_TEXTS_MOST 10
#define CUP__SCORE_LIMITS_MOST 8

typedef struct cup__score_text {
    const char *file;
    char *text;
} cup__score_text;

/* The formula of a cup_expr. */
struct cup__score {
    cup__score_formula base; /* first: attention knows of no more */
    struct cup__score *next;
    cup__expr_node *nodes; /* inputs are numbered as attention's vectors */
    int count;
    int32_t gives[CUP__GIVES]; /* nodes; -1: it is 0 */
    cup__expr_node *limit_nodes; /* of the parts of its condition that are limits, `limits` */
    int limit_nodes_count, limits;
    int32_t limit[CUP__SCORE_LIMITS_MOST];
    cup__score_text texts[CUP__SCORE_TEXTS_MOST];
};

/* It may have been made before; NULL with an error. */
struct cup__score *cup__score_get(cup_expr *e);

/* Which of attention's vectors an input is; `tensors` counts those that are none of its own. */
int cup__score_reads(const cup_expr *e, int input, int *tensors);

/* How far keys may be from their queries by what the condition of a call says of that. */
cup_status cup__score_limits(const struct cup__score *s, const double *parameters,
                             cup__error *error, cup__key_limits *out);

/* The node of the condition of the where() that the score ends in, -1 without one; *bare is the
 * score where it holds. */
int cup__score_condition(const struct cup__score *s, int *bare);

/* Whether a node divides by what is the same for all pairs; adds that as kernels have it. */
bool cup__score_is_quotient(const struct cup__score *s, const cup__expr_node *n);
/* Whether a node is rounded down anywhere, of which quotients must be exact. */
bool cup__score_is_floored(const struct cup__score *s, int node);
void cup__score_divisor(const struct cup__score *s, const cup__expr_node *quotient, cup__text *out);

/* Whether anything may be known of its condition on whole tiles; adds what is. */
bool cup__score_sees(const struct cup__score *s);
void cup__score_spans(const struct cup__score *s, cup__text *out);

/* The text that is compiled in place of a kernel's file; NULL without memory. */
char *cup__score_source(const struct cup__score *s, const char *file);

#endif
