/* What one way to share a step takes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/plot.h"
#include "cli/plan_piece.h"

/* A step of several copies takes so much longer than one of a card alone, whatever goes between
 * them: GPT-2 124M 4.6 % on two H200, blocks of 2048 5.5 and 6.2 %, backward hiding the sums. */
#define SLOWEST 0.054

#define MOST_REHEARSED 2048

struct plan_rehearsed {
    int count;
    struct {
        plan_part part;
        cup_plan plan;
        plan_seconds seconds;
    } list[MOST_REHEARSED];
};

const char *const plan_loss_words[PLAN_LOSSES] = {
    [PLAN_KERNELS] = "kernels",         [PLAN_TWICE] = "computed twice",
    [PLAN_OPTIMIZER] = "optimizer",     [PLAN_STAGES] = "stages",
    [PLAN_TENSOR] = "tensor sums",      [PLAN_RING] = "keys that go round",
    [PLAN_EXPERTS] = "rows to experts", [PLAN_GRADIENTS] = "gradients",
    [PLAN_WEIGHTS] = "weights brought", [PLAN_SLOWEST] = "slowest card"};

double plan_mfu(const cup_card *card, const cup_training *a, double tokens_per_second)
{
    double peak = a->dtype != CUP_F32 || (a->precision && !strcmp(a->precision, "medium"))
                      ? card->half
                  : card->tf32 && !(a->precision && !strcmp(a->precision, "highest")) ? card->tf32
                                                                                      : card->f32;
    return tokens_per_second * plot_flops_of_token(&a->model, a->lora_rank > 0) / peak;
}

static int64_t heads_of_keys(const cup_gpt_config *g)
{
    return g->kv_heads ? g->kv_heads : g->heads;
}

double plan_ring_bytes(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    int64_t size = g->head_size ? g->head_size : g->width / g->heads;
    int64_t tokens = split->texts * g->context / split->ring;
    return 2.0 * (double)(tokens * heads_of_keys(g) * size / split->tensor) *
           (double)cup_dtype_size(s->training.dtype);
}

static bool is_same(const plan_part *a, const plan_part *b)
{
    return a->blocks == b->blocks && a->tensor == b->tensor && a->ring == b->ring &&
           a->texts == b->texts && a->batches == b->batches && a->recompute == b->recompute;
}

/* Attention, norms, and ops that steps end with; Muon's products are not told from those of the
 * model. */
static void on_op(const cup_plan_op *op, void *user)
{
    plan_seconds *seconds = user;
    static const char ends[] = "|" CUP_METHOD_NAMES "|global_norm|step_factors|";
    char word[80];
    snprintf(word, sizeof word, "|%s|", op->name);
    if (strstr(ends, word))
        seconds->optimizer += op->seconds;
    if (!strncmp(op->name, "qkv_attention", 13))
        seconds->attention += op->seconds;
    if (strstr(op->name, "layernorm") || strstr(op->name, "rmsnorm"))
        seconds->norms += op->seconds;
}

int plan_rehearse(plan_scene *s, const plan_part *part, cup_plan *out, plan_seconds *seconds)
{
    plan_rehearsed *r = s->rehearsed;
    cup_training a = s->training;
    plan_seconds ends = {0};
    if (!r && !(r = s->rehearsed = calloc(1, sizeof *r))) {
        snprintf(s->why, sizeof s->why, "out of host memory for a plan");
        return CLI_MEMORY;
    }
    int i = 0;
    while (i < r->count && !is_same(&r->list[i].part, part))
        i++;
    if (i == r->count) {
        a.model.layers = part->blocks;
        a.tensor = part->tensor;
        a.ring = part->ring;
        a.batch = part->texts;
        a.accumulate = part->batches;
        a.recompute = part->recompute;
        a.recompute_blocks = 0;
        a.sequence = false;
        if (cup_training_plan(s->c, &a, s->card.name, out, on_op, &ends) != CUP_OK) {
            int code = cli_exit_of(cup_error(s->c));
            snprintf(s->why, sizeof s->why, "%s", cup_error_text(s->c));
            cup_error_clear(s->c);
            return code;
        }
        i -= i == MOST_REHEARSED;
        r->list[i].part = *part;
        r->list[i].plan = *out;
        r->list[i].seconds = ends;
        r->count = i + 1;
    }
    *out = r->list[i].plan;
    if (seconds)
        *seconds = r->list[i].seconds;
    return CLI_OK;
}

void plan_forget(plan_scene *s)
{
    free(s->rehearsed);
    s->rehearsed = NULL;
}

static pair pair_of(double one, double two)
{
    return (pair){.block = two - one, .ends = 2 * one - two};
}

/* Takes off what others have of the experts, which beside adapters have weights alone, and adds
 * what is kept for their rows. */
static void take_off(const plan_scene *s, const plan_split *split, piece *p)
{
    pair *const all[] = {&p->weights, &p->gradients, &p->states, &p->step};
    double bytes = plan_experts_away(s, split) * (double)cup_dtype_size(s->training.dtype);
    double left = p->weights.block > bytes ? 1 - bytes / p->weights.block : 0;
    size_t count = s->training.lora_rank ? 1 : sizeof all / sizeof *all;
    for (size_t i = 0; i < count; i++)
        all[i]->block *= left;
    p->kept.block += plan_experts_kept(s, split);
}

int plan_piece_of(plan_scene *s, const plan_split *split, piece *out)
{
    cup_plan p[2][2];
    plan_seconds ends[2][2];
    int code = CLI_OK;
    for (int i = 0; i < 4 && !code; i++) {
        const plan_part part = {.blocks = 1 + i / 2,
                                .tensor = split->tensor,
                                .ring = split->ring,
                                .texts = split->texts,
                                .batches = 1 + i % 2,
                                .recompute = split->recompute};
        code = plan_rehearse(s, &part, &p[i / 2][i % 2], &ends[i / 2][i % 2]);
    }
    if (code)
        return code;
    const cup_plan *a = &p[0][0], *b = &p[1][0];
    double one = p[0][1].seconds - a->seconds, two = p[1][1].seconds - b->seconds;
    out->batch = pair_of(one, two);
    out->first = pair_of(a->seconds - ends[0][0].optimizer - one,
                         b->seconds - ends[1][0].optimizer - two);
    out->step = pair_of(ends[0][1].optimizer, ends[1][1].optimizer);
    /* Queries of a part see in each turn as many keys as they see of their own. */
    out->batch.block += (double)(split->ring - 1) *
                        (ends[1][0].attention - ends[0][0].attention);
    out->weights = pair_of((double)a->weight_bytes, (double)b->weight_bytes);
    out->gradients = pair_of((double)a->gradient_bytes, (double)b->gradient_bytes);
    out->states = pair_of((double)a->optimizer_bytes, (double)b->optimizer_bytes);
    out->kept = pair_of((double)a->kept_bytes, (double)b->kept_bytes);
    take_off(s, split, out);
    out->kept.block -= plan_sequence_less(s, split);
    if (plan_sequence_is(s, split))
        out->batch.block -=
            (1 - 1 / (double)split->tensor) * (ends[1][0].norms - ends[0][0].norms);
    return CLI_OK;
}

int64_t plan_blocks_of(const plan_scene *s, const plan_split *split)
{
    return (s->training.model.layers + split->stages - 1) / split->stages;
}

double plan_of_stage(const plan_scene *s, const plan_split *split, pair p)
{
    return (double)plan_blocks_of(s, split) * p.block + p.ends;
}

/* Batches one behind the other through all stages: the first one passes all, each other one comes
 * behind it at the pace of the slowest stage. What the ends take is the last stage's. Of several
 * chunks a stage waits for as many that are as much shorter; where batches are no multiple of the
 * stages, the last ones go through each chunk as if they were. `waits` takes that alone. */
static double pipe_seconds(const plan_scene *s, const plan_split *split, pair p, double *waits)
{
    int64_t layers = s->training.model.layers, chunks = split->chunks;
    int64_t odd = split->batches % split->stages;
    double first = (double)plan_blocks_of(s, split) * p.block;
    double last = (double)(layers / split->stages) * p.block + p.ends;
    double slowest = split->stages > 1 && first > last ? first : last;
    *waits = ((double)layers * p.block + p.ends - slowest) / (double)chunks;
    if (odd)
        *waits += (double)((chunks - 1) * (split->stages - odd)) * slowest / (double)chunks;
    return (double)split->batches * slowest + *waits;
}

double plan_share_of(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    double size = (double)(g->head_size ? g->head_size : g->width / g->heads);
    double width = (double)g->width;
    double embedding = (double)g->vocabulary * width;
    double mlp = (double)g->hidden * width * (g->mlp == CUP_MLP_KIND_SWIGLU ? 2 : 1);
    if (g->experts)
        mlp *= (double)g->experts;
    if (split->expert > 1)
        mlp *= (double)split->tensor / (double)split->expert;
    double qkv = width * size * (double)(g->heads + 2 * heads_of_keys(g));
    double even = 1 / (double)(split->copies * split->ring);
    double largest = fmax(embedding, fmax(mlp, qkv));
    double least = largest * (double)split->stages / (double)cup_gpt_parameter_count(g, true);
    /* Adapters are many and small. */
    return s->training.lora_rank ? even : fmin(1, fmax(even, least));
}

bool plan_computes_twice(const plan_split *split)
{
    return split->recompute == CUP_RECOMPUTE_POLICY_BLOCK;
}

/* Whether forward is of halves of a batch, each of which hides what is added up of the other one:
 * where products of half of its rows have that many tiles for each multiprocessor. */
#define HALF_TILES 2
#define TILE_ROWS 128
#define TILE_COLUMNS 256

static bool in_halves(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    int64_t rows = split->texts / 2 * g->context;
    bool takes = split->tensor > 1 && split->ring == 1 && !g->experts && !(g->dropout > 0) &&
                 !g->documents && !plan_sequence_is(s, split);
    return takes && split->texts > 1 && rows / TILE_ROWS * g->width / TILE_COLUMNS >=
                                            (int64_t)HALF_TILES * s->card.multiprocessors;
}

/* Not measured: what a block's forward takes longer as halves, of seven kernels more, which begin
 * and end. */
#define HALVES_SECONDS 35e-6

/* What is to be waited for of the two sums of a block's forward. Half a sum goes on beside half of
 * attention or of what stands behind it, each a quarter of forward, which is a third of what a
 * block takes that is computed once. */
static double forward_sums(const plan_scene *s, const plan_split *split, const piece *kept,
                           double between)
{
    plan_group group = {split->tensor, 1};
    double whole = plan_block_sum(&s->cluster, group, between);
    double half = plan_block_sum(&s->cluster, group, between / 2);
    if (!in_halves(s, split))
        return 2 * whole;
    /* A block that is computed twice ends with its last sum. */
    double last = plan_computes_twice(split) ? half : 0;
    return fmin(2 * whole, 4 * fmax(0, half - kept->batch.block / 12) + last + HALVES_SECONDS);
}

/* What of the two sums of a block's backward gradients of weights do not hide, which are about a
 * quarter of what a block takes that is computed once. */
static double backward_sums(const plan_scene *s, const piece *kept, double one)
{
    double beside = s->training.lora_rank ? 0 : kept->batch.block / 4;
    return fmax(0, 2 * one - beside);
}

/* What a batch's sums inside blocks and between stages take. Of tokens that are shared out each sum
 * is two halves, with kernels between them, and what products were given is gathered once more in
 * backward where it is not computed twice. */
static pair tensor_sums(const plan_scene *s, const plan_split *split, const piece *kept,
                        double between)
{
    plan_group group = {split->tensor, 1};
    double one = plan_block_sum(&s->cluster, group, between);
    double half = plan_block_half(&s->cluster, group, between);
    if (plan_sequence_is(s, split))
        return (pair){.block = half * (plan_computes_twice(split) ? 12 : 10) +
                               plan_experts_choices(s, split),
                      .ends = 4 * half};
    double block = forward_sums(s, split, kept, between) * (plan_computes_twice(split) ? 2 : 1) +
                   backward_sums(s, kept, one);
    return (pair){.block = block + plan_experts_choices(s, split), .ends = 2 * one};
}

static double passing(const plan_scene *s, const plan_split *split, double between)
{
    /* The slowest way is the one that leaves a node, where any does. */
    bool leaves = split->stages * split->tensor > s->cluster.each;
    plan_group next = {2, leaves ? s->cluster.each : split->tensor};
    if (split->stages == 1)
        return 0;
    double ways = (double)(split->stages * split->chunks - 1) / (double)(split->stages - 1);
    double times = (double)split->batches * ways + (double)(split->stages - 1);
    return 2 * times * plan_send(&s->cluster, next, between);
}

/* Forward the keys and values of a batch go to the next process, again where blocks are computed
 * twice, and backward they and their gradients, which are in f32 where they are sums of more than
 * two. */
static double ring_seconds(const plan_scene *s, const plan_split *split)
{
    const cup_gpt_config *g = &s->training.model;
    int64_t stride = split->stages * split->tensor, turns = split->ring - 1;
    bool leaves = split->ring * stride > s->cluster.each;
    plan_group next = {2, leaves ? s->cluster.each : stride};
    double bytes = plan_ring_bytes(s, split);
    double wide = split->ring > 2 ? 4.0 / (double)cup_dtype_size(s->training.dtype) : 1;
    double keys = plan_round(&s->cluster, next, bytes);
    double gradients = plan_round(&s->cluster, next, wide * bytes);
    double block = (double)turns * ((plan_computes_twice(split) ? 3 : 2) * keys + gradients);
    return split->ring > 1 ? block * (double)(split->batches * g->layers / split->stages) : 0;
}

/* Seconds of all batches of a copy, were its GPUs always busy. */
static double even_seconds(const plan_scene *s, const plan_split *split, pair batch)
{
    double whole = (double)s->training.model.layers * batch.block + batch.ends;
    return (double)split->batches * whole / (double)split->stages;
}

/* Computing blocks twice, beside keeping all. */
static int once(plan_scene *s, const plan_split *split, piece *out)
{
    plan_split other = *split;
    other.recompute = CUP_RECOMPUTE_POLICY_NONE;
    return plan_piece_of(s, &other, out);
}

static void find_losses(plan_scene *s, plan_split *split, const piece *p, const piece *kept)
{
    const cup_gpt_config *g = &s->training.model;
    double alone = (double)s->texts * (double)g->context / ((double)s->cluster.gpus * s->one);
    double between = (double)(split->texts * g->context / split->ring) * (double)g->width *
                     (double)cup_dtype_size(s->training.dtype);
    double ignored, bare = pipe_seconds(s, split, p->batch, &split->bubble);
    double even = even_seconds(s, split, p->batch);
    double *loss = split->losses;
    pair sums = tensor_sums(s, split, kept, between);
    pair both = {p->batch.block + sums.block, p->batch.ends + sums.ends};
    pair all = {both.block + plan_experts_seconds(s, split), both.ends};
    loss[PLAN_KERNELS] = even_seconds(s, split, kept->batch) - alone;
    loss[PLAN_KERNELS] += plan_of_stage(s, split, p->first);
    loss[PLAN_TWICE] = even - even_seconds(s, split, kept->batch);
    loss[PLAN_OPTIMIZER] = plan_of_stage(s, split, p->step);
    loss[PLAN_OPTIMIZER] *= split->zero ? plan_share_of(s, split) : 1;
    loss[PLAN_STAGES] = bare - even + passing(s, split, between);
    loss[PLAN_TENSOR] = pipe_seconds(s, split, both, &ignored) - bare;
    loss[PLAN_RING] = ring_seconds(s, split);
    loss[PLAN_EXPERTS] =
        pipe_seconds(s, split, all, &ignored) - pipe_seconds(s, split, both, &ignored);
    loss[PLAN_SLOWEST] = alone;
    for (int i = 0; i < PLAN_GRADIENTS; i++)
        loss[PLAN_SLOWEST] += loss[i];
    loss[PLAN_SLOWEST] *= plan_copies_of(split).count > 1 ? SLOWEST : 0;
    loss[PLAN_GRADIENTS] = plan_gradient_seconds(s, split, p);
    loss[PLAN_WEIGHTS] = plan_weight_seconds(s, split, p);
    split->seconds = alone;
    for (int i = 0; i < PLAN_LOSSES; i++)
        split->seconds += loss[i];
    split->scaling = alone / split->seconds;
}

int plan_time(plan_scene *s, plan_split *split)
{
    piece p, kept;
    int code = plan_piece_of(s, split, &p);
    if (!code)
        code = once(s, split, &kept);
    if (code)
        return code;
    find_losses(s, split, &p, &kept);
    for (int i = 0; i < PLAN_LOSSES; i++)
        split->losses[i] /= split->seconds;
    split->bubble /= split->seconds;
    double tokens = (double)s->texts * (double)s->training.model.context;
    split->tokens_per_second = tokens / split->seconds;
    split->mfu = plan_mfu(&s->card, &s->training,
                          split->tokens_per_second / (double)s->cluster.gpus);
    return CLI_OK;
}

int plan_alone(plan_scene *s)
{
    const cup_gpt_config *g = &s->training.model;
    int code = CLI_OK;
    for (int64_t texts = 1; texts <= PLAN_MOST_TOKENS && !code; texts *= 2) {
        piece p;
        const plan_split split = {
            .tensor = 1, .stages = 1, .chunks = 1, .ring = 1, .copies = 1, .texts = texts};
        if (texts > 1 && texts * g->context > PLAN_MOST_TOKENS)
            break;
        code = plan_piece_of(s, &split, &p);
        double seconds = (double)g->layers * p.batch.block + p.batch.ends;
        double rate = code ? 0 : (double)(texts * g->context) / seconds;
        s->one = rate > s->one ? rate : s->one;
    }
    return code;
}

/* Whether several GPUs share each head of keys, of whose features each makes as many. */
static bool shares_keys(const cup_gpt_config *g, int64_t tensor)
{
    int64_t heads = heads_of_keys(g), size = g->head_size ? g->head_size : g->width / g->heads;
    return heads < tensor && tensor % heads == 0 && size % (tensor / heads) == 0;
}

/* The rows of the embedding: what cup_gpt rounds the vocabulary up to. */
static int64_t rows_of(const cup_gpt_config *g)
{
    int64_t step = g->vocabulary < 4096 ? 8 : 128;
    return (g->vocabulary + step - 1) / step * step;
}

/* Codes of 8 bits are of whole parameters. */
static bool has_whole_codes(const plan_scene *s, const plan_split *split, char why[PLAN_WHY])
{
    bool cut = split->tensor > 1 || (split->expert > 1 && !s->training.lora_rank);
    if (s->training.optimizer.method != CUP_METHOD_ADAMW8 || !cut)
        return true;
    snprintf(why, PLAN_WHY, "states of 8 bits are not of what GPUs share out; take --optimizer "
                            "adamw, or leave tp and ep out");
    return false;
}

/* What a GPU of those that share out a model must be able to divide by their number. */
static bool divides(const plan_scene *s, const plan_split *split, char why[PLAN_WHY])
{
    const cup_gpt_config *g = &s->training.model;
    const struct {
        const char *what;
        int64_t number;
    } rows[] = {{"heads", g->heads},
                {"heads of keys", shares_keys(g, split->tensor) ? 0 : heads_of_keys(g)},
                {"hidden", g->hidden},
                {"rows of its vocabulary", rows_of(g)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].number % split->tensor) {
            snprintf(why, PLAN_WHY,
                     "tp=%lld does not divide the model's %lld %s; take a number that does",
                     (long long)split->tensor, (long long)rows[i].number, rows[i].what);
            return false;
        }
    int64_t most = g->layers < TRAIN_STAGES ? g->layers : TRAIN_STAGES;
    if (split->ring > 1 && g->context % (2 * split->ring))
        snprintf(why, PLAN_WHY, "a context of %lld tokens has no %lld parts alike, two for each "
                                "process of cp=%lld; take a multiple",
                 (long long)g->context, (long long)(2 * split->ring), (long long)split->ring);
    else if (split->ring > 1 && g->dropout > 0 && g->context % (32 * split->ring))
        snprintf(why, PLAN_WHY, "dropout in parts of texts is of a context that is a multiple of "
                                "%lld, 32 for each process of cp=%lld; give --dropout 0, or such a "
                                "--context",
                 (long long)(32 * split->ring), (long long)split->ring);
    else if (split->ring > 1 && g->window && g->window < g->context)
        snprintf(why, PLAN_WHY, "parts of texts do not know of windows; leave cp out");
    else if (split->ring > 1 &&
             (g->soft_cap > 0 || g->sinks || g->documents || g->positions == CUP_POSITIONS_ALIBI))
        snprintf(why, PLAN_WHY, "parts of texts do not know of soft caps, sinks, alibi and "
                                "documents; leave cp out");
    else if (split->stages * split->chunks > g->layers && split->chunks > 1)
        snprintf(why, PLAN_WHY, "pp=%lld with --interleave %lld are too many chunks for %lld "
                                "blocks; take fewer",
                 (long long)split->stages, (long long)split->chunks, (long long)g->layers);
    else if (split->stages > most)
        snprintf(why, PLAN_WHY, "pp=%lld are too many stages for %lld blocks; take %lld at most",
                 (long long)split->stages, (long long)g->layers, (long long)most);
    else
        return has_whole_codes(s, split, why) && plan_experts_share(s, split, why);
    return false;
}

bool plan_share(const plan_scene *s, int64_t batch, plan_split *split, char why[PLAN_WHY])
{
    int64_t parts = 1;
    if (!divides(s, split, why))
        return false;
    split->batch = batch;
    split->accumulate = s->texts / batch;
    while (split->accumulate * parts % split->copies && parts < split->copies)
        parts++;
    split->batches = split->accumulate * parts / split->copies;
    split->texts = batch / parts;
    if (s->texts % batch == 0 && batch % parts == 0)
        return plan_sequence_share(s, split, why);
    snprintf(why, PLAN_WHY,
             "%lld texts of a step, %lld at once, cannot be shared equally by %lld copies of the "
             "model; give a multiple of both with --texts, or another --batch",
             (long long)s->texts, (long long)batch, (long long)split->copies);
    return false;
}
