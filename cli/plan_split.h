/* What a step takes where many GPUs share it: the cost model of `cupola plan --gpus`. docs/SCALE.md
 * says its formulas. */
#ifndef CLI_PLAN_SPLIT_H
#define CLI_PLAN_SPLIT_H

#include "cli/train.h"
#include "cupola/plan.h"

/* GPUs, as many on each node, and what goes between them in one direction, in bytes a second: in a
 * node what all-reduces of much reach on the bus, between nodes what a GPU's own adapter does. */
typedef struct plan_cluster {
    int64_t gpus, nodes, each;
    double link, network;
} plan_cluster;

/* So many processes whose ranks are `stride` apart. */
typedef struct plan_group {
    int64_t count, stride;
} plan_group;

/* What is known of a kind of card's links, as cup_card_find names it; false where it is a guess. */
bool plan_link_of(const char *card, double *bytes_per_second);

/* Seconds for a sum that all of a group get; for what one sends to all, or all to one; for what
 * one sends to the next; and for a sum in the middle of a block, with what stands around it, by
 * copies of two of a node. */
double plan_all_reduce(const plan_cluster *k, plan_group group, double bytes);
double plan_spread(const plan_cluster *k, plan_group group, double bytes);
double plan_send(const plan_cluster *k, plan_group group, double bytes);
double plan_block_sum(const plan_cluster *k, plan_group group, double bytes);
/* Half of such a sum: all get what each has, or each has a part of the sum. */
double plan_block_half(const plan_cluster *k, plan_group group, double bytes);
/* Where each sends so many bytes to all others together. */
double plan_exchange(const plan_cluster *k, plan_group group, double bytes);
/* And for what goes round in attention, to the next one. */
double plan_round(const plan_cluster *k, plan_group group, double bytes);

/* Where the time goes that is not spent as on one card alone. */
typedef enum plan_loss {
    PLAN_KERNELS,   /* smaller products, and what the first batch does otherwise */
    PLAN_TWICE,     /* what is computed twice */
    PLAN_OPTIMIZER,
    PLAN_STAGES,    /* stages that wait for each other, and what goes between them */
    PLAN_TENSOR,    /* sums inside blocks */
    PLAN_RING,      /* keys and values of parts of texts, and their gradients */
    PLAN_EXPERTS,   /* rows that go to experts and back */
    PLAN_GRADIENTS, /* sums of gradients that backward does not hide */
    PLAN_WEIGHTS,   /* weights brought from those that have them */
    PLAN_SLOWEST,   /* all wait for the slowest */
    PLAN_LOSSES
} plan_loss;
extern const char *const plan_loss_words[PLAN_LOSSES];

/* A way to share a step: copies of the model, of which each has so many parts of each text, in so
 * many stages of so many chunks, each shared out by so many GPUs. */
typedef struct plan_split {
    int64_t copies, ring, stages, chunks, tensor, zero;
    int64_t expert; /* so many of the copies share out experts; 0 and 1: none do */
    int64_t batch, accumulate; /* as --batch and --accumulate say it */
    int64_t texts, batches;    /* at once, and how often in a step of a copy */
    cup_recompute_policy recompute;
    double seconds, tokens_per_second, mfu;
    double scaling; /* part of as many times what one card reaches that has all the memory */
    double losses[PLAN_LOSSES]; /* parts of a step; with `scaling` they are 1 */
    double bubble;              /* the part in which a stage waits for others */
    double needed;              /* bytes of the GPU that needs most */
    bool fits;
} plan_split;

typedef struct plan_rehearsed plan_rehearsed;
#define PLAN_WHY 400

/* All that splits are weighed by. */
typedef struct plan_scene {
    cup_context *c;
    cup_training training; /* its model is checked */
    cup_card card;
    plan_cluster cluster;
    int64_t texts; /* of a step */
    int64_t limit; /* bytes of each card that may be used; 0: all */
    double one;    /* tokens a second of one card, whatever it needs */
    plan_rehearsed *rehearsed;
    char why[PLAN_WHY]; /* what the last rehearsal that failed said */
} plan_scene;

/* What a part of the model takes, of so many blocks, shared out by so many GPUs, with a part of
 * each text. Each is rehearsed once. `seconds`, which may be NULL, takes those of the optimizer's
 * own ops, of attention and of norms in a step. Returns an exit code, of which `why` of the scene
 * has the sentence. */
typedef struct plan_part {
    int64_t blocks, tensor, ring, texts, batches;
    cup_recompute_policy recompute;
} plan_part;
typedef struct plan_seconds {
    double optimizer, attention, norms;
} plan_seconds;
int plan_rehearse(plan_scene *s, const plan_part *part, cup_plan *out, plan_seconds *seconds);
void plan_forget(plan_scene *s);

#define PLAN_MOST_TOKENS (1 << 16) /* tried at once: more makes no product faster */
/* Finds `one`. Returns such a code, too. */
int plan_alone(plan_scene *s);

/* Fills in the time of a split that plan_share has filled in; what it needs. Both return such
 * a code. */
int plan_time(plan_scene *s, plan_split *split);
int plan_memory(plan_scene *s, plan_split *split);

/* Shares the texts of a step as training does, --batch being `batch`. False, with a sentence in
 * `why`, where they or the model cannot be shared so. */
bool plan_share(const plan_scene *s, int64_t batch, plan_split *split, char why[PLAN_WHY]);

/* What cards reach of their peak. */
double plan_mfu(const cup_card *card, const cup_training *a, double tokens_per_second);

/* `cupola plan --gpus`. */
int plan_gpus(cli_call *call, cup_context *c, const cup_training *training);

#endif
