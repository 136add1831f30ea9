/* How much of what forward makes is computed again, where memory is to say. */
#include <stdio.h>
#include <string.h>

#include "base/room.h"
#include "base/text.h"
#include "cuda/dry.h"
#include "nn/gpt.h"
#include "tensor/context.h"
#include "train/trainer.h"

/* From the fastest to the one that needs least. */
static const cup_recompute_policy order[] = {
    CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
    CUP_RECOMPUTE_POLICY_BLOCK};
#define COUNT (sizeof order / sizeof *order)

/* Between `low` blocks, which are too few, and as many as do. */
static cup_status choose_blocks(cup_training *a, int64_t low, cup__policy_fits fit, void *user)
{
    int64_t high = a->model.layers, asked = high;
    while (high - low > 1) {
        bool fits = false;
        a->recompute_blocks = asked = low + (high - low) / 2;
        CUP_TRY(fit(a, &fits, user));
        *(fits ? &high : &low) = asked;
    }
    a->recompute_blocks = high < a->model.layers ? high : 0;
    bool again;
    return asked == high ? CUP_OK : fit(a, &again, user);
}

cup_status cup__training_choose(cup_training *a, cup__policy_fits fit, void *user)
{
    size_t i = 0;
    a->recompute_blocks = 0;
    for (bool fits = false; !fits && i < COUNT; i++) {
        a->recompute = order[i];
        CUP_TRY(fit(a, &fits, user));
        /* Blocks are counted from the first of the model, and stages have theirs anywhere in it. */
        if (fits && i > 0 && a->stages < 2)
            return choose_blocks(a, 0, fit, user);
    }
    return CUP_OK;
}

/* What the code of kernels takes of a card beside the pool. */
#define CODE_BYTES ((int64_t)256 << 20)

static cup__memory_use use_of(cup_context *c)
{
    cup__memory_use use = {0};
    c->device->calls->memory_use(c->device, &use);
    return use;
}

/* What is there behind the forward of a batch. */
typedef struct watched {
    cup_context *dry;
    int64_t most;
} watched;

static void on_forward(void *user)
{
    watched *w = user;
    int64_t now = use_of(w->dry).allocated;
    w->most = now > w->most ? now : w->most;
}

int64_t cup__training_held(cup_context *dry, cup_trainer *t, int64_t *kept)
{
    watched w = {.dry = dry};
    t->forward_done = on_forward;
    t->forward_user = &w;
    int64_t at_rest = use_of(dry).allocated;
    cup__dry_forget_peak(dry->device);
    cup__loop_rehearse_step(t->loop);
    int64_t step = use_of(dry).peak_allocated;
    *kept = w.most - at_rest;
    t->forward_done = NULL;
    cup__dry_forget_peak(dry->device);
    cup__loop_rehearse_evaluation(t->loop);
    return cup__held_bytes(at_rest, step, use_of(dry).peak_allocated);
}

/* Bytes of a run on a GPU: what it holds, what forward keeps of a batch, and of the model all, what
 * is learned and its states. */
typedef struct rehearsed {
    double held, kept, weights, learned, states;
} rehearsed;

static double bytes_of(cup_parameters *list)
{
    int64_t count, bytes = 0;
    const cup_named *named = cup_parameters_named(list, &count);
    for (int64_t i = 0; named && i < count; i++)
        bytes += named[i].tensor->count * cup_dtype_size(named[i].tensor->dtype);
    return (double)bytes;
}

static void measure(cup_context *dry, cup_trainer *t, rehearsed *out)
{
    int64_t kept;
    double batches = (double)(2 * t->tokens->count * cup_dtype_size(CUP_I32) +
                              t->loop->pending->count * cup_dtype_size(CUP_F32));
    double others = t->model->adapters ? bytes_of(t->model->parameters) : 0;
    out->learned = bytes_of(cup__gpt_learned(t->model));
    out->weights = out->learned + others;
    out->states = (double)use_of(dry).allocated - out->learned - others - batches;
    out->held = (double)cup__training_held(dry, t, &kept);
    out->kept = (double)kept;
}

/* The run is begun on a card like the context's that is not there. */
static cup_status rehearse(cup_context *c, const cup_training *a, rehearsed *out)
{
    *out = (rehearsed){0};
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cup_context *dry = cup__context_dry(facts->arch);
    cup_trainer t = {0};
    if (!dry)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a rehearsal");
    if (dry->error.status == CUP_OK) {
        cup__dry_like(cup__cuda_of(dry->device), facts);
        cup_scope_open(dry);
        if (cup__training_precision(dry, a) == CUP_OK && cup__training_dry(dry, a, &t) == CUP_OK)
            measure(dry, &t, out);
        cup_scope_return(dry, NULL);
        cup__training_dry_free(&t);
    }
    if (dry->error.status != CUP_OK)
        cup__fail(&c->error, dry->error.status, "%s", cup_error_text(dry));
    cup_context_free(dry);
    return c->error.status;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* Of a model of so many blocks alone, what is kept of the only batch of a step. */
static cup_status kept_by(cup_context *c, const cup_training *a, int64_t blocks, double *kept)
{
    rehearsed r;
    cup_training small = *a;
    small.model.layers = blocks;
    small.stages = small.accumulate = 1;
    small.blocks = NULL;
    CUP_TRY(rehearse(c, &small, &r));
    *kept = r.kept;
    return CUP_OK;
}

/* What was rehearsed has one batch at a time and both ends of the model: of stages the first one
 * has as many batches ahead as can be, and no logits, the last one those of its chunks. */
static cup_status add_stages(cup_context *c, const cup_training *a, double *held)
{
    double one = 0, two = 0, stages = (double)a->stages;
    double chunks = a->chunks > 1 ? (double)a->chunks : 1;
    CUP_TRY(kept_by(c, a, 1, &one));
    CUP_TRY(kept_by(c, a, 2, &two));
    double experts = a->recompute == CUP_RECOMPUTE_POLICY_BLOCK ? 0 : cup__experts_more(a);
    double each = two - one + experts - cup__sequence_less(a);
    double blocks = (double)cup__training_blocks(a) * each;
    double first = smaller((double)a->accumulate, stages) - 1;
    double last = smaller((double)a->accumulate, ((chunks - 1) * stages + 1) / chunks) - 1;
    double ends = 2 * one - two;
    *held += first * blocks - ends > last * blocks ? first * blocks - ends : last * blocks;
    return CUP_OK;
}

/* The training of what a process has of the model, were it alone with it. */
static cup_training cut_of(const cup_training *a)
{
    cup_training own = *a;
    cup__training_cut(&own);
    return own;
}

/* What the positions of whole texts take that are learned, and keys, values and gradients that are
 * at hand and on their way, with what a turn gives. */
static double more_of_ring(const cup_training *a, const rehearsed *r)
{
    cup_training own = cut_of(a);
    const cup_gpt_config *g = &own.model;
    double size = (double)cup_dtype_size(a->dtype), wide = a->ring > 2 ? 2 : 1;
    double pairs = (double)(2 * (g->kv_heads ? g->kv_heads : g->heads) * cup__gpt_head_size(g));
    double bytes = pairs * (double)(a->batch * g->context) * size;
    double numbers = (double)cup_gpt_parameter_count(g, true);
    double each = (r->weights + r->learned + r->states) / numbers;
    double others = (double)((a->model.context - g->context) * g->width);
    bool learned = g->positions == CUP_POSITIONS_LEARNED;
    return a->ring > 1 ? (learned ? others * each : 0) + (4 + 2 * wide) * bytes : 0;
}

/* The numbers of experts of others among those that were rehearsed. */
static double away_of(const cup_training *a)
{
    return cup__experts_away(a) * (double)cup__training_blocks(a);
}

/* Blocks whose rows of one batch are there at a time: one that is computed again is there with its
 * gradients, beside what backward has come to. */
static double blocks_there(const cup_training *a)
{
    int64_t blocks = cup__training_blocks(a);
    int64_t again = a->recompute_blocks > 0 ? a->recompute_blocks : blocks;
    if (a->recompute != CUP_RECOMPUTE_POLICY_BLOCK)
        return (double)blocks;
    return (double)(again > 2 ? blocks - again + 2 : blocks);
}

/* Experts that others have, less the rows of others that go through those that are here, in a step
 * and in an evaluation. */
static double less_of_experts(const cup_training *a, const rehearsed *r)
{
    cup_training own = cut_of(a);
    double numbers = (double)cup_gpt_parameter_count(&own.model, true);
    double each = (r->weights + (a->lora_rank ? 0 : r->learned + r->states)) / numbers;
    double there = blocks_there(a) * cup__experts_more(a) + cup__experts_evaluated(a);
    return away_of(a) * each - there;
}

/* The part of what processes split (ZeRO) that the one has who has most, as no parameter is cut. */
static double share_of(const cup_training *a, int64_t owners)
{
    const cup_gpt_config *g = &a->model;
    double width = (double)g->width, embedding = (double)g->vocabulary * width;
    double mlp = (double)g->hidden * width * (g->mlp == CUP_MLP_KIND_SWIGLU ? 2 : 1);
    double qkv = (double)(cup__gpt_parts(g) * cup__gpt_head_size(g)) * width;
    double stages = a->stages > 1 ? (double)a->stages : 1, most = embedding;
    mlp *= g->experts > 0 ? (double)g->experts : 1;
    mlp *= a->expert > 1 ? (double)(a->tensor > 1 ? a->tensor : 1) / (double)a->expert : 1;
    most = mlp > most ? mlp : most;
    most = (qkv > most ? qkv : most) * stages / (double)cup_gpt_parameter_count(g, true);
    double share = 1 / (double)owners;
    return a->lora_rank || most < share ? share : smaller(most, 1);
}

/* Takes off what others keep of it, but for experts, which were taken off already; at stage 3 two
 * blocks' parameters are here for a time. */
static void take_off_split(const cup_training *a, const rehearsed *r, double *bytes)
{
    int64_t each = (a->tensor > 1 ? a->tensor : 1) * (a->stages > 1 ? a->stages : 1);
    int64_t owners = cup_comm_count(a->optimizer.split) / each;
    if (owners < 2)
        return;
    cup_training own = cut_of(a);
    double others = 1 - share_of(a, owners), blocks = 0;
    if (!a->lora_rank) {
        double inside = (double)cup_gpt_parameter_count(&own.model, false);
        blocks = 2 * (inside / (double)own.model.layers - cup__experts_away(a)) *
                 (double)cup_dtype_size(a->dtype);
        others -= away_of(a) / (double)cup_gpt_parameter_count(&own.model, true);
    }
    *bytes -= others * r->states;
    if (a->optimizer.stage > 1 && a->stages < 2)
        *bytes -= others * r->learned;
    if (a->optimizer.stage > 2 && others * r->learned > blocks)
        *bytes -= others * r->learned - blocks;
}

cup_status cup__training_policy_needs(cup_context *c, const cup_training *a, double *bytes)
{
    rehearsed r;
    cup_training own = *a;
    *bytes = cup__training_needs(a);
    if (!c->device->is_cuda)
        return CUP_OK;
    /* Gradients that go to their owners are there together with all else from a second batch on. */
    if (cup_comm_count(a->optimizer.split) > 1 && a->optimizer.stage > 1 && a->accumulate < 2)
        own.accumulate = 2;
    CUP_TRY(rehearse(c, &own, &r));
    *bytes = r.held + more_of_ring(a, &r) - less_of_experts(a, &r);
    /* A block whose turn it is has the whole of its tokens. */
    *bytes -= (double)(cup__training_blocks(a) - 1) * cup__sequence_less(a);
    if (a->stages > 1)
        CUP_TRY(add_stages(c, a, bytes));
    take_off_split(a, &r, bytes);
    return CUP_OK;
}

/* Bytes that the run may hold. */
static double room_of(cup_context *c)
{
    cup__memory_use use = use_of(c);
    cup__room host;
    cup__room_find(&host);
    int64_t room = c->device->is_cuda ? use.free + use.reserved - CODE_BYTES : host.free;
    return (double)(use.limit > 0 && use.limit < room ? use.limit : room);
}

/* What is asked about policies, and what was found, as a text. */
typedef struct asking {
    cup_context *c;
    cup__text text;
    double room;
} asking;

static cup_status ask(const cup_training *a, bool *fits, void *user)
{
    asking *k = user;
    char bytes[32];
    double needs = 0;
    CUP_TRY(cup__training_policy_needs(k->c, a, &needs));
    *fits = k->c->device->is_cuda ? cup__held_fits(needs, k->room) : needs <= k->room;
    /* What is found on the way to the fewest blocks is not told. */
    if (a->recompute_blocks == 0)
        cup__text_add(&k->text, "%s%s needs %s", cup__text_string(&k->text)[0] ? ", " : "",
                      cup_recompute_policy_name(a->recompute), cup__text_bytes(needs, bytes));
    return CUP_OK;
}

/* Those who share out a model compute the same again, as sums between them are among it: what
 * needs least of all that they chose. `others` says whether it was another process's choice. */
static cup_status agree(cup_comm *comm, cup_training *own, bool *others)
{
    int64_t chosen = 0, layers = own->model.layers;
    while (order[chosen] != own->recompute)
        chosen++;
    int64_t most = chosen, blocks = own->recompute_blocks ? own->recompute_blocks : layers;
    CUP_TRY(cup_comm_agree(comm, &most, 1));
    int64_t many = most == chosen ? blocks : 0;
    CUP_TRY(cup_comm_agree(comm, &many, 1));
    *others = most != chosen || many != blocks;
    own->recompute = order[most];
    own->recompute_blocks = many < layers ? many : 0;
    return CUP_OK;
}

/* As "norms in 4 of 12 blocks". */
static void say(cup_trainer *t, const cup_training *own, const asking *k, bool others)
{
    char some[64] = "", room[32];
    if (own->recompute_blocks > 0)
        snprintf(some, sizeof some, " in %lld of %lld blocks", (long long)own->recompute_blocks,
                 (long long)own->model.layers);
    snprintf(t->policy, sizeof t->policy, "%s%s: %s, and %s may be used%s",
             cup_recompute_policy_name(own->recompute), some, cup__text_string(&k->text),
             cup__text_bytes(k->room, room), others ? ", by another process less" : "");
}

static cup_status choose(cup_context *c, cup_trainer *t, cup_training *own)
{
    bool others = false, parted = t->among || t->pipe || t->ring || t->experts;
    asking k = {.c = c, .room = room_of(c)};
    cup_status status = cup__training_choose(own, ask, &k);
    if (status == CUP_OK && parted)
        status = agree(t->training.comm, own, &others);
    if (status == CUP_OK)
        say(t, own, &k, others);
    cup__text_free(&k.text);
    return status;
}

cup_status cup__training_policy(cup_context *c, cup_trainer *t, cup_training *own)
{
    if (own->recompute == CUP_RECOMPUTE_POLICY_AUTO)
        CUP_TRY(choose(c, t, own));
    t->recompute = own->recompute;
    t->recompute_blocks = own->recompute_blocks;
    return c->error.status;
}

const char *cup_trainer_policy_text(const cup_trainer *t)
{
    return t && t->policy[0] ? t->policy : NULL;
}
