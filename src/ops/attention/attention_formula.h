/* Attention whose scores become what a formula makes of them (cupola/expr.h): all that attention
 * knows of the formula, which src/custom makes, and the row of its calls, which stands beside those
 * of ops.def because a formula is none of their attributes.
 *
 * A formula takes the place of soft caps, slopes and biases. It is given a scaled score, the number
 * of the key that is the query's own, the key's, the head's and the batch's, and a number of each
 * of its tensors, which broadcast to [batch, heads, queries, keys]. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_FORMULA_H
#define CUP_OPS_ATTENTION_ATTENTION_FORMULA_H

#include "cupola/expr.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"

#define CUP__SCORE_TENSORS 8

/* Parameters of a usual size are no larger, and none smaller than its inverse: then derivatives
 * that are said to be finite are so. */
#define CUP__PARAMETER_MOST 1e6

/* The vectors that a formula reads: these, then its tensors. */
enum {
    CUP__READS_SCORE,
    CUP__READS_QUERY,
    CUP__READS_KEY,
    CUP__READS_HEAD,
    CUP__READS_BATCH,
    CUP__READS_TENSORS,
    CUP__READS = CUP__READS_TENSORS + CUP__SCORE_TENSORS
};
/* Those that it gives: the score, -infinity where the key is hidden, what that is differentiated by
 * the score before, and then by each of its tensors. */
enum {
    CUP__GIVES_SCORE,
    CUP__GIVES_SLOPE,
    CUP__GIVES_TENSORS,
    CUP__GIVES = CUP__GIVES_TENSORS + CUP__SCORE_TENSORS
};

/* One evaluation, of `count` neighbours: vectors of doubles when `wide`, else of floats. */
typedef struct cup__score_run {
    bool wide;
    int64_t count;
    const void *reads[CUP__READS];
    const double *parameters;
    void *room;                    /* of cup__score_formula.room bytes for each neighbour */
    const void *gives[CUP__GIVES]; /* set by it: vectors in the room, or among those it read */
} cup__score_run;

typedef struct cup__score_formula {
    int tensors;
    bool plain;        /* it gives the score as it is */
    bool sees;         /* kernels may know of whole tiles whether its condition hides them */
    uint32_t parameters; /* those in it, as bits */
    bool sloped;       /* the derivative by the score is not 1 everywhere */
    uint32_t differs;  /* bit i: the derivative by tensor i is not 0 everywhere */
    uint32_t by_score; /* bit i: the score is part of it */
    size_t room;
    void (*evaluate)(const struct cup__score_formula *f, cup__score_run *run);
    /* The text that is compiled in place of a file of attention's kernels; NULL without memory. */
    const char *(*source)(struct cup__score_formula *f, const char *file);
} cup__score_formula;

/* A tensor of a formula; strides of batches, heads, queries and keys, 0 where all are alike. */
typedef struct cup__score_tensor {
    cup_tensor *tensor;
    int64_t stride[4];
} cup__score_tensor;

/* Attributes of a call; those of attention come first, so that it can be read as one. */
typedef struct cup__formula_attributes {
    cup__attention_attributes plain;
    cup__score_formula *formula;
    double parameters[CUP_EXPR_PARAMETERS];
    int64_t before, after; /* limits of the mask that the formula's condition says */
} cup__formula_attributes;

typedef struct cup__formula_grad_attributes {
    cup__attention_grad_attributes plain;
    cup__score_formula *formula;
    double parameters[CUP_EXPR_PARAMETERS];
    int64_t before, after;
    uint32_t wanted; /* bit i: the gradient of tensor i is */
} cup__formula_grad_attributes;

/* Its inputs are those of attention but for key_blocks, whose optional ones may be NULL, and the
 * formula's tensors: a tape knows of 16. */
#define CUP__FORMULA_INPUTS 8 /* before the tensors */
extern const cup__row cup__attention_formula_row;

struct cup__attention;
struct cup__attention_score;

/* What `formula` of a call is bound to: its tensors begin with input `first`. */
void cup__score_bind(struct cup__attention_score *s, const cup__call *call, int first,
                     cup__score_formula *formula, const double *parameters);

/* Which tensors differ from key to key, and from query to query, as bits. */
uint32_t cup__score_varies(const struct cup__attention_score *s, int dimension);

/* Floats of room for the scores of a row of a block of the CPU's; 0 without a formula. */
int64_t cup__score_floats(const struct cup__attention *a, int64_t count);

/* Where scores lie: those of a query and `count` keys from `key` on. */
typedef struct cup__score_place {
    int64_t batch, head, query, key, count;
} cup__score_place;

/* Evaluates the formula for scaled scores, which are doubles when `wide`, else floats. */
cup__score_run cup__score_evaluate(const struct cup__attention *a, cup__score_place at, bool wide,
                                   const void *scores, void *room);

/* The gradients of the formula's tensors, where they are wanted: those of pairs cleared, as not all
 * are met; and of tensor i that of one query, or of one pair. */
cup_status cup__score_clear(const struct cup__attention *a);
void cup__score_store_row(const struct cup__attention *a, int i, cup__score_place at, double d);
void cup__score_store_pair(const struct cup__attention *a, int i, cup__score_place at, double d);

#endif
