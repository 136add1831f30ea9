/* What it takes where processes share out the experts of each block (`--parallel ep=E`). */
#include <stdio.h>

#include "cli/plan_piece.h"

static int64_t processes_of(const plan_split *split)
{
    return split->expert > 1 ? split->expert : 1;
}

static int64_t matrices_of(const cup_gpt_config *g)
{
    return g->mlp == CUP_MLP_KIND_SWIGLU ? 3 : 2;
}

static double tokens_of(const plan_scene *s, const plan_split *split)
{
    return (double)(split->texts * s->training.model.context / split->ring);
}

/* Those that a process sends to experts that are shared out. */
static double tokens_sent(const plan_scene *s, const plan_split *split)
{
    return tokens_of(s, split) / (double)split->tensor;
}

/* Rows that a process has room for, for each of its tokens: without a capacity as many as all
 * processes may send. */
static double rows_of_token(const cup_gpt_config *g, const plan_split *split)
{
    double each = (double)g->experts_each, own = (double)(g->experts / processes_of(split));
    double rows = (double)processes_of(split) * (each < own ? each : own);
    double most = g->capacity > 0 ? g->capacity * each : rows;
    return rows < most ? rows : most;
}

double plan_experts_away(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    if (split->expert < 2)
        return 0;
    return (double)(matrices_of(g) * g->experts * g->width * g->hidden) *
           (1 / (double)split->tensor - 1 / (double)split->expert);
}

/* Beside adapters experts learn nothing. */
double plan_experts_part(const plan_scene *s, const plan_split *split, double weights)
{
    const cup_gpt_config *g = &s->training.model;
    if (split->expert < 2 || s->training.lora_rank)
        return 0;
    double own = (double)(matrices_of(g) * g->experts * g->width * g->hidden / split->expert);
    double bytes = own * (double)cup_dtype_size(s->training.dtype);
    return bytes < weights ? bytes / weights : 1;
}

plan_group plan_experts_alike(const plan_split *split)
{
    int64_t all = split->copies * split->ring * split->tensor;
    return (plan_group){all / processes_of(split), split->stages * processes_of(split)};
}

/* What is kept of one row in a block where a process has so much of the width inside: what is made
 * of it, and these in order. */
static double row_kept(const plan_scene *s, int64_t hidden)
{
    const cup_gpt_config *g = &s->training.model;
    return (double)(matrices_of(g) * hidden + 4 * g->width) *
           (double)cup_dtype_size(s->training.dtype);
}

/* Of a block: what is kept of the rows of all beyond those that a process has of its own, where
 * experts are not shared out. */
static double more_kept(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    plan_split alone = *split;
    alone.expert = 1;
    double own = rows_of_token(g, &alone) * tokens_of(s, split);
    double all = rows_of_token(g, split) * tokens_sent(s, split);
    double more = all * row_kept(s, g->hidden) - own * row_kept(s, g->hidden / split->tensor);
    return more > 0 ? more : 0;
}

double plan_experts_kept(const plan_scene *s, const plan_split *split)
{
    bool twice = split->recompute == CUP_RECOMPUTE_POLICY_BLOCK;
    return split->expert > 1 && !twice ? more_kept(s, split) : 0;
}

double plan_experts_there(const plan_scene *s, const plan_split *split)
{
    bool twice = split->recompute == CUP_RECOMPUTE_POLICY_BLOCK;
    double blocks = twice ? 2 : (double)plan_blocks_of(s, split);
    return split->expert > 1 ? blocks * more_kept(s, split) : 0;
}

/* An evaluation has places for all that may come, whatever the capacity, and beside what a block
 * makes of them what was sent, has come and goes back. */
double plan_experts_evaluated(const plan_scene *s, const plan_split *split)
{
    cup_gpt_config free = s->training.model;
    plan_split alone = *split;
    alone.expert = 1;
    free.capacity = 0;
    if (split->expert < 2)
        return 0;
    double inside = (double)(matrices_of(&free) * free.hidden), width = (double)free.width;
    double all = rows_of_token(&free, split) * tokens_sent(s, split) * (inside + 6 * width);
    double own = rows_of_token(&free, &alone) * tokens_of(s, split) *
                 (inside / (double)split->tensor + width);
    return all > own ? (all - own) * (double)cup_dtype_size(s->training.dtype) : 0;
}

/* Rows go to their experts and back in each direction, and in the forward one again where blocks
 * are computed twice: all places, filled or not, of which a process keeps its own. What is kept is
 * written and read, and its gradients, too; of places that are empty nothing is multiplied. */
double plan_experts_seconds(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    double ways = split->recompute == CUP_RECOMPUTE_POLICY_BLOCK ? 6 : 4;
    if (split->expert < 2)
        return 0;
    double places = rows_of_token(g, split) * tokens_sent(s, split) * (double)g->width *
                    (double)cup_dtype_size(s->training.dtype);
    double sent = places * (1 - 1 / (double)split->expert);
    double one = plan_exchange(&s->cluster, (plan_group){split->expert, split->stages}, sent);
    return ways * (one + more_kept(s, split) / s->card.bytes_per_second);
}

/* Who has parts of all experts takes the choices of the first, 8 bytes each. */
double plan_experts_choices(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    double bytes = 8 * tokens_of(s, split) * (double)g->experts_each;
    bool twice = split->recompute == CUP_RECOMPUTE_POLICY_BLOCK;
    if (!g->experts || split->expert > 1)
        return 0;
    return (twice ? 2 : 1) * plan_spread(&s->cluster, (plan_group){split->tensor, 1}, bytes);
}

bool plan_experts_share(const plan_scene *s, const plan_split *split, char why[PLAN_WHY])
{
    const cup_gpt_config *g = &s->training.model;
    if (split->expert < 2)
        return true;
    if (!g->experts)
        snprintf(why, PLAN_WHY,
                 "ep=%lld shares out experts, of which the model has none; give --experts, or "
                 "leave ep out",
                 (long long)split->expert);
    else if (g->experts % split->expert)
        snprintf(why, PLAN_WHY,
                 "ep=%lld does not share out %lld experts equally; take a number that divides them",
                 (long long)split->expert, (long long)g->experts);
    else
        return true;
    return false;
}
