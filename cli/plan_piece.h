/* What the time and the memory of a split are made of. */
#ifndef CLI_PLAN_PIECE_H
#define CLI_PLAN_PIECE_H

#include "cli/plan_split.h"

/* A number of what each block takes, and of what the two ends of the model do. */
typedef struct pair {
    double block, ends;
} pair;

typedef struct piece {
    /* Seconds of each batch but the first, of how much longer that takes, and of the optimizer. */
    pair batch, first, step;
    pair weights, gradients, states, kept; /* bytes */
} piece;

/* Models of one and of two blocks, in steps of one batch and of two, say what is whose. */
int plan_piece_of(plan_scene *s, const plan_split *split, piece *out);

/* Of the stage that has most: its blocks, and a number of all that it has; and the part of states
 * that the one of several copies has who has most, as no parameter is cut. */
int64_t plan_blocks_of(const plan_scene *s, const plan_split *split);
double plan_of_stage(const plan_scene *s, const plan_split *split, pair p);
double plan_share_of(const plan_scene *s, const plan_split *split);

/* Whether whole blocks are computed twice, and with them what is sent inside of them. */
bool plan_computes_twice(const plan_split *split);

/* All that have the same part of the model, those of a ring side by side; seconds of a step in
 * which their gradients are summed and backward does not hide it; and in which weights of others
 * come, behind the step or before each use of them. */
plan_group plan_copies_of(const plan_split *split);
double plan_gradient_seconds(const plan_scene *s, const plan_split *split, const piece *p);
double plan_weight_seconds(const plan_scene *s, const plan_split *split, const piece *p);

/* Where processes share out experts: the numbers of a block's experts that others have; bytes that
 * a block keeps of a batch for rows of others, and that are there of one batch in all blocks of a
 * stage; seconds in which a batch's rows go to a block's experts and back, and in which parts of
 * all experts agree on them. Whether they can be shared out so, else with a sentence in `why`. */
double plan_experts_away(const plan_scene *s, const plan_split *split);
/* Of a block's weights, so many bytes, the part that experts are which are shared out; and those
 * who have the same ones. */
double plan_experts_part(const plan_scene *s, const plan_split *split, double weights);
plan_group plan_experts_alike(const plan_split *split);
double plan_experts_kept(const plan_scene *s, const plan_split *split);
double plan_experts_there(const plan_scene *s, const plan_split *split);
/* Bytes that an evaluation needs beyond that of one process alone. */
double plan_experts_evaluated(const plan_scene *s, const plan_split *split);
double plan_experts_seconds(const plan_scene *s, const plan_split *split);
double plan_experts_choices(const plan_scene *s, const plan_split *split);
bool plan_experts_share(const plan_scene *s, const plan_split *split, char why[PLAN_WHY]);

/* Whether tokens between blocks are shared out, and bytes that a block keeps less of a batch then;
 * whether they can be, else with a sentence in `why`. */
bool plan_sequence_is(const plan_scene *s, const plan_split *split);
double plan_sequence_less(const plan_scene *s, const plan_split *split);
bool plan_sequence_share(const plan_scene *s, const plan_split *split, char why[PLAN_WHY]);

/* The keys and values of a batch in a block that a process of a ring has. */
double plan_ring_bytes(const plan_scene *s, const plan_split *split);

#endif
