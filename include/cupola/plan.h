/* cupola/plan.h: what a training run needs, and how fast it goes, before there is a GPU for it. */
#ifndef CUPOLA_PLAN_H
#define CUPOLA_PLAN_H

#include "cupola/facts.h"
#include "cupola/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run on one card. Bytes are those of the run itself, whose first step and evaluation are made on
 * a card that is not there: it does all but launch kernels. */
typedef struct cup_plan {
    size_t size;             /* see CUP_OPTIONS */
    int64_t parameters;      /* numbers that are learned */
    int64_t weight_bytes;    /* of them */
    int64_t gradient_bytes;  /* of all of them at once */
    int64_t optimizer_bytes; /* states, and master copies of 16-bit weights */
    int64_t batch_bytes;     /* a step's tokens, and its losses */
    int64_t kept_bytes;      /* what forward of one batch keeps for backward */
    int64_t peak_bytes;      /* most in use by tensors in a step, all of the above included */
    int64_t evaluation_bytes; /* most in use in an evaluation, weights and optimizer included */
    int64_t held_bytes; /* most that is taken from the driver: the graph of a step keeps its memory,
                           and evaluations have theirs beside it */
    bool fits; /* that is no more than the card has, less what the driver keeps, nor than the
                  memory_limit of the context that plans */
    double flops;            /* of a step, as the ops count them: those of the model and what
                                recomputing adds */
    double seconds;          /* a step */
    double tokens_per_second;
    cup_recompute_policy recompute; /* the training's; of AUTO the first of NONE, NORMS, POINTWISE
                                       and BLOCK that fits, or else BLOCK */
    int64_t recompute_blocks;       /* the training's; of AUTO as few as fit; 0: all */
    int64_t host_bytes; /* of the host's memory, for an optimizer that is offloaded; then they are
                           not among optimizer_bytes */
} cup_plan;

/* What the calls of one op in a step take. */
typedef struct cup_plan_op {
    const char *name;
    int64_t calls;
    double flops, bytes, seconds;
} cup_plan_op;

/* Plans a run on a card of a name that cup_card_find knows. The training is as for
 * cup_trainer_new, its vocabulary is set; `comm` and `from` are not looked at. Of processes that
 * share out a model, by `tensor`, `ring` and `stages`, the plan is of one as if it were alone with
 * what it has: of the stage with most blocks, with both ends of the model, and each batch by
 * itself. The time of a call is the greater one of its operations at the card's peak and of its
 * bytes at the speed of its memory, each by the part of it that the op was measured to reach on an
 * H200; other cards are taken to reach the same parts. `report`, which may be NULL, is told of each
 * op, the longest first. */
CUP_API cup_status cup_training_plan(cup_context *c, const cup_training *training,
                                     const char *card, cup_plan *out,
                                     void (*report)(const cup_plan_op *op, void *user),
                                     void *user);

#ifdef __cplusplus
}
#endif
#endif
