/* What one way to share a step needs of a GPU's memory. */
#include <math.h>
#include <stdio.h>

#include "cli/common/exit.h"
#include "cli/plan_piece.h"

/* What the driver keeps, and NCCL, which is not measured, where there are several. */
#define DRIVER_BYTES (1.5 * (1 << 30))
#define NCCL_BYTES (0.5 * (1 << 30))

bool plan_sequence_is(const plan_scene *s, const plan_split *split)
{
    return s->training.sequence && split->tensor > 1;
}

/* What blocks keep of the width of all tokens: what norms are given and what they give, which
 * backward may make again; or what a block is given. */
double plan_sequence_less(const plan_scene *s, const plan_split *split)
{
    static const double kept[] = {[CUP_RECOMPUTE_POLICY_NONE] = 4,
                                  [CUP_RECOMPUTE_POLICY_NORMS] = 2,
                                  [CUP_RECOMPUTE_POLICY_POINTWISE] = 2,
                                  [CUP_RECOMPUTE_POLICY_BLOCK] = 1};
    const cup_gpt_config *g = &s->training.model;
    double tokens = (double)(split->texts * g->context / split->ring);
    double width = (double)(g->width * cup_dtype_size(s->training.dtype));
    double others = 1 - 1 / (double)split->tensor;
    return plan_sequence_is(s, split) ? kept[split->recompute] * others * tokens * width : 0;
}

bool plan_sequence_share(const plan_scene *s, const plan_split *split, char why[PLAN_WHY])
{
    const cup_gpt_config *g = &s->training.model;
    int64_t tokens = split->texts * (g->context / split->ring);
    if (!plan_sequence_is(s, split) || tokens % split->tensor == 0)
        return true;
    snprintf(why, PLAN_WHY, "%lld tokens at once are no %lld equal parts between blocks; make the "
                            "batch or the context a multiple",
             (long long)tokens, (long long)split->tensor);
    return false;
}

/* Less than all that is there at a time: so much is needed at least. */
static double least_needed(const plan_scene *s, const plan_split *split, const piece *p)
{
    double share = plan_share_of(s, split);
    int64_t ahead = split->batches < split->stages ? split->batches : split->stages;
    bool away = split->zero > 2 && !s->training.lora_rank;
    return plan_of_stage(s, split, p->weights) * (away ? share : 1) +
           plan_of_stage(s, split, p->states) * (split->zero > 0 ? share : 1) +
           (double)(ahead * plan_blocks_of(s, split)) * p->kept.block;
}

/* Above so many blocks each one more is taken to need as much as those before it. */
#define DEEP 64

static int64_t extend(int64_t half, int64_t whole, int64_t blocks)
{
    return whole + (int64_t)((double)(whole - half) / (DEEP / 2) * (double)(blocks - DEEP));
}

static int rehearse_deep(plan_scene *s, plan_part part, cup_plan *out)
{
    cup_plan half;
    int64_t blocks = part.blocks;
    if (blocks <= DEEP)
        return plan_rehearse(s, &part, out, NULL);
    part.blocks = DEEP / 2;
    int code = plan_rehearse(s, &part, &half, NULL);
    part.blocks = DEEP;
    code = code ? code : plan_rehearse(s, &part, out, NULL);
    if (code)
        return code;
    out->parameters = extend(half.parameters, out->parameters, blocks);
    out->weight_bytes = extend(half.weight_bytes, out->weight_bytes, blocks);
    out->gradient_bytes = extend(half.gradient_bytes, out->gradient_bytes, blocks);
    out->optimizer_bytes = extend(half.optimizer_bytes, out->optimizer_bytes, blocks);
    out->held_bytes = extend(half.held_bytes, out->held_bytes, blocks);
    return CLI_OK;
}

/* What the positions of whole texts take that are learned, and keys, values and gradients that are
 * at hand and on their way, with what a turn gives. */
static double more_of_ring(const plan_scene *s, const plan_split *split, const cup_plan *plan)
{
    const cup_gpt_config *g = &s->training.model;
    bool learned = g->positions == CUP_POSITIONS_LEARNED;
    double each = (double)(plan->weight_bytes + plan->gradient_bytes + plan->optimizer_bytes) /
                  (double)plan->parameters;
    double others = (double)(g->context - g->context / split->ring) * (double)g->width;
    double wide = split->ring > 2 ? 2 : 1;
    if (split->ring == 1)
        return 0;
    return (learned ? others * each : 0) + (4 + 2 * wide) * plan_ring_bytes(s, split);
}

/* The part of all numbers that are experts' of others. */
static double away_of(const plan_scene *s, const plan_split *split, const cup_plan *plan)
{
    return plan_experts_away(s, split) * (double)plan_blocks_of(s, split) /
           (double)plan->parameters;
}

/* Experts that others have, less the rows of others that go through those that are here, in a step
 * and in an evaluation. */
static double less_of_experts(const plan_scene *s, const plan_split *split, const cup_plan *plan)
{
    int64_t learned = s->training.lora_rank ? 0 : plan->gradient_bytes + plan->optimizer_bytes;
    double each = (double)(plan->weight_bytes + learned) / (double)plan->parameters;
    double away = away_of(s, split, plan) * (double)plan->parameters;
    return away * each - plan_experts_there(s, split) - plan_experts_evaluated(s, split);
}

/* Batches that the last stage keeps, of all its blocks. */
static double last_ahead(const plan_split *split)
{
    double most = (double)((split->chunks - 1) * split->stages + 1) / (double)split->chunks;
    return fmin((double)split->batches, most);
}

/* The rehearsed part has both ends of the model. Of several stages the first one keeps most
 * batches, and has no logits. Gradients that go to their owners are taken off what is there
 * together with them, as it is from the second batch on. */
int plan_memory(plan_scene *s, plan_split *split)
{
    piece p;
    cup_plan plan;
    int64_t blocks = plan_blocks_of(s, split);
    const plan_part part = {.blocks = blocks,
                            .tensor = split->tensor,
                            .ring = split->ring,
                            .texts = split->texts,
                            .batches = split->batches > 1 || split->zero > 1 ? 2 : 1,
                            .recompute = split->recompute};
    int code = plan_piece_of(s, split, &p);
    if (code)
        return code;
    double room = s->card.memory_bytes - DRIVER_BYTES - (s->cluster.gpus > 1 ? NCCL_BYTES : 0);
    room = s->limit ? fmin(room, (double)s->limit) : room;
    split->needed = least_needed(s, split, &p);
    split->fits = false;
    if (split->needed > room)
        return CLI_OK;
    code = rehearse_deep(s, part, &plan);
    if (code)
        return code;
    double share = plan_share_of(s, split), needed = (double)plan.held_bytes;
    int64_t ahead = split->batches < split->stages ? split->batches : split->stages;
    needed += more_of_ring(s, split, &plan) - less_of_experts(s, split, &plan);
    /* A block whose turn it is has the whole of its tokens. */
    needed -= (double)(blocks - 1) * plan_sequence_less(s, split);
    double first = needed - p.kept.ends + (double)((ahead - 1) * blocks) * p.kept.block;
    double last = needed + (last_ahead(split) - 1) * (double)blocks * p.kept.block;
    needed = split->stages > 1 ? fmax(first, last) : needed;
    /* What all keep of these goes, less what of experts was taken off already. */
    bool adapted = s->training.lora_rank > 0; /* beside weights that all keep */
    double rest = 1 - share - (adapted ? 0 : away_of(s, split, &plan));
    double learned = (double)(adapted ? plan.gradient_bytes : plan.weight_bytes);
    if (split->zero > 0)
        needed -= rest * (double)plan.optimizer_bytes;
    if (split->zero > 1 && split->stages == 1)
        needed -= rest * (double)plan.gradient_bytes;
    if (split->zero > 2)
        needed -= fmax(0, rest * learned - (adapted ? 0 : 2 * p.weights.block));
    split->needed = needed;
    split->fits = needed <= room;
    return CLI_OK;
}
