/* What a training run needs, from a step that is rehearsed on a card that is not there. */
#include "cupola/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cupola/prof.h"
#include "cuda/dry.h"
#include "dispatch/call.h"
#include "nn/gpt.h"
#include "prof/cost.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

#define MOST_OPS 128

/* What the driver and its context keep of a card's memory. */
#define DRIVER_BYTES (1.5 * (1 << 30))

/* The part of the card's peak that an op reaches in its products, and of the memory's speed
 * otherwise: from the launches of a step of GPT-2 124M in bf16 with 32 texts on an H200. */
typedef struct reach {
    const char *op;
    double products, memory;
} reach;
static const reach reaches[] = {
    {"linear", 0.735, 0.7},
    {"matmul", 0.735, 0.7},
    {"linear_weight_grad", 0.745, 0.7},
    {"matmul_add", 0.745, 0.7}, /* the same kernel */
    {"linear_gelu", 0.595, 0.7},
    {"matmul_gelu_grad", 0.588, 0.7},
    {"qkv_attention", 0.283, 0.7},
    {"qkv_attention_grad", 0.273, 0.7},
    {"cross_entropy", 0.7, 0.73},
    {"linear_cross_entropy", 0.62, 0.7}, /* with the pass over the logits between its products */
    {"layernorm_grad", 0.7, 0.62},
    {"add_layernorm", 0.7, 0.76},
    {"adamw", 0.7, 0.82},
    {"embedding_grad", 0.7, 0.16},
    {"scale_by", 0.7, 100}, /* by 1, of which nothing is read */
    {NULL, 0.7, 0.7}};

/* Of a text of 1024 tokens, and more of a longer one, of which less is at the edge of what a query
 * sees: 4096 tokens reach 1.51 times as much as 1024 forward (bench/records.tsv). */
#define USUAL_LENGTH 1024.0
#define EDGE 840.0

/* What copies bring each way at once between a GPU and pinned memory of the host, in a second: on
 * an H200 a step of 85.3 million parameters took 22.8 ms longer. */
#define HOST_BYTES 45e9

/* What a call costs besides: the gap to the one before, and blocks that begin and end. */
#define GAP_SECONDS 6e-6

/* How much longer a step takes among many than its launches one by one, between which the card
 * rests and keeps a higher clock. */
#define SUSTAINED 1.07

typedef struct planning {
    cup_context *dry;
    cup_card card;
    double room; /* bytes that may be held */
    const char *precision;
    cup_plan_op ops[MOST_OPS];
    int count;
    double repeats; /* of what is called now, in a step */
    int64_t kept, static_bytes;
} planning;

static int64_t in_use(cup_context *dry, bool peak)
{
    cup_memory use;
    cup_memory_use(dry, &use);
    return peak ? use.peak_allocated : use.allocated;
}

static const reach *reach_of(const char *op)
{
    const reach *r = reaches;
    while (r->op && strcmp(r->op, op))
        r++;
    return r;
}

/* Operations a second of products whose first input is of this dtype. */
static double peak_of(const planning *p, cup_dtype dtype)
{
    const cup_card *card = &p->card;
    if (dtype == CUP_F32 && strcmp(p->precision, "medium"))
        return card->tf32 && !strcmp(p->precision, "high") ? card->tf32 : card->f32;
    if (dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2)
        return card->float8 ? card->float8 : card->half;
    return card->half;
}

static cup_plan_op *op_of(planning *p, const char *name)
{
    int i = 0;
    while (i < p->count && strcmp(p->ops[i].name, name))
        i++;
    if (i == MOST_OPS)
        i--;
    if (i == p->count)
        p->ops[p->count++] = (cup_plan_op){.name = name};
    return &p->ops[i];
}

/* Those that a call reads of the host's memory, as many as it may write there. */
static double host_bytes(const cup__call *call)
{
    double bytes = 0;
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && call->in[i]->storage->pinned)
            bytes += (double)(call->in[i]->count * cup_dtype_size(call->in[i]->dtype));
    return bytes;
}

static void add(planning *p, const cup__call *call, double bytes, double flops, double peak)
{
    const char *name = call->row->name;
    const reach *r = reach_of(name);
    cup_plan_op *op = op_of(p, name);
    double seconds = fmax(flops / (peak * r->products),
                          bytes / (p->card.bytes_per_second * r->memory));
    seconds = fmax(seconds, host_bytes(call) / HOST_BYTES);
    op->calls += (int64_t)p->repeats;
    op->flops += p->repeats * flops;
    op->bytes += p->repeats * bytes;
    op->seconds += p->repeats * (SUSTAINED * seconds + GAP_SECONDS);
}

static double gain_of_length(const cup__call *call)
{
    if (strncmp(call->row->name, "qkv_attention", 13))
        return 1;
    double length = fmax((double)call->in[0]->shape[1], USUAL_LENGTH);
    return (1 + EDGE / USUAL_LENGTH) * length / (length + EDGE);
}

/* A call of an op, before it runs. */
static void on_call(void *called, void *user)
{
    planning *p = user;
    const cup__call *call = called;
    double bytes, flops;
    if (p->repeats <= 0 || call->op->view)
        return;
    cup__call_cost(call, &bytes, &flops);
    double peak =
        peak_of(p, call->in_count && call->in[0] ? call->in[0]->dtype : CUP_BF16);
    add(p, call, bytes, flops, peak * gain_of_length(call));
}

static void on_forward(void *user)
{
    planning *p = user;
    int64_t kept = in_use(p->dry, false) - p->static_bytes;
    p->kept = kept > p->kept ? kept : p->kept;
}

static int by_seconds(const void *a, const void *b)
{
    const cup_plan_op *x = a, *y = b;
    return (y->seconds > x->seconds) - (y->seconds < x->seconds);
}

static int64_t bytes_of(cup_parameters *list)
{
    int64_t count, bytes = 0;
    const cup_named *named = cup_parameters_named(list, &count);
    for (int64_t i = 0; named && i < count; i++)
        bytes += named[i].tensor->count * cup_dtype_size(named[i].tensor->dtype);
    return bytes;
}

/* One batch alone; a second one, to which the gradients of the first are there, whose calls are
 * those of all that follow; and what comes behind the last, which is done with it where it is the
 * first or the second. */
static void rehearse_step(planning *p, cup_loop *l)
{
    cup_optimizer_set(l->optimizer, l->options.schedule.high, 1);
    p->repeats = 1;
    if (cup__loop_compute(l, 0, 1) == CUP_OK && l->share > 1) {
        p->repeats = (double)(l->share - 1);
        cup__loop_compute(l, 1, 2);
        p->repeats = 1;
        if (l->share > 2)
            cup__loop_compute(l, l->share, l->share);
    }
    cup__loop_clear(l);
    p->repeats = 0;
}

static void rehearse(planning *p, cup_trainer *t, cup_plan *plan)
{
    cup_context *c = p->dry;
    int64_t learned = bytes_of(cup__gpt_learned(t->model));
    int64_t weights = bytes_of(t->model->parameters) + (t->model->adapters ? learned : 0);
    plan->parameters = cup_gpt_parameter_count(&t->model->config, true);
    plan->weight_bytes = weights;
    plan->gradient_bytes = learned;
    p->static_bytes = in_use(c, false);
    cup__memory_use use;
    c->device->calls->memory_use(c->device, &use);
    plan->host_bytes = use.host;
    plan->batch_bytes = 2 * t->tokens->count * cup_dtype_size(CUP_I32) +
                        t->loop->pending->count * cup_dtype_size(CUP_F32);
    plan->optimizer_bytes = p->static_bytes - weights - plan->batch_bytes;
    cup__dry_watch(c->device, on_call, p);
    cup__dry_forget_peak(c->device);
    t->forward_done = on_forward;
    t->forward_user = p;
    rehearse_step(p, t->loop);
    plan->kept_bytes = p->kept;
    plan->peak_bytes = in_use(c, true);
    cup__dry_watch(c->device, NULL, NULL);
    cup__dry_forget_peak(c->device);
    cup__loop_rehearse_evaluation(t->loop);
    plan->evaluation_bytes = in_use(c, true);
}

static void sum_up(planning *p, const cup_training *a, cup_plan *plan)
{
    qsort(p->ops, (size_t)p->count, sizeof *p->ops, by_seconds);
    for (int i = 0; i < p->count; i++) {
        plan->seconds += p->ops[i].seconds;
        plan->flops += p->ops[i].flops;
    }
    double tokens = (double)a->batch * (double)a->model.context * (double)a->accumulate;
    plan->tokens_per_second = tokens / plan->seconds;
    plan->held_bytes = cup__held_bytes(p->static_bytes, plan->peak_bytes, plan->evaluation_bytes);
    plan->fits = (double)plan->held_bytes <= p->room;
    plan->recompute = a->recompute;
    plan->recompute_blocks = a->recompute_blocks;
}

static cup_context *open_card(cup_context *c, const cup_card *card)
{
    cup_context *dry = cup__context_dry(card->arch);
    if (!dry || cup_error(dry) != CUP_OK) {
        cup__fail(&c->error, dry ? cup_error(dry) : CUP_MEMORY, "plan: %s",
                  dry ? cup_error_text(dry) : "out of host memory");
        cup_context_free(dry);
        return NULL;
    }
    cup__gpu_facts facts = *cup__cuda_facts(cup__cuda_of(dry->device));
    facts.multiprocessors = card->multiprocessors;
    facts.memory_bytes = (int64_t)card->memory_bytes;
    cup__dry_like(cup__cuda_of(dry->device), &facts);
    return dry;
}

static cup_status plan_on(planning *p, cup_training *a, cup_plan *plan)
{
    cup_context *c = p->dry;
    cup_trainer t = {0};
    cup_scope_open(c);
    cup_status status = cup__training_check(c, a);
    if (status == CUP_OK)
        status = cup__training_precision(c, a);
    if (status == CUP_OK)
        status = cup__training_dry(c, a, &t);
    if (status == CUP_OK)
        rehearse(p, &t, plan);
    cup_scope_return(c, NULL);
    cup__training_dry_free(&t);
    if (c->error.status == CUP_OK)
        sum_up(p, a, plan);
    return c->error.status;
}

/* On a card of its own, which is let go of. */
static cup_status plan_once(cup_context *c, planning *p, cup_training *a, cup_plan *out)
{
    *out = (cup_plan){.size = sizeof *out};
    p->count = 0;
    p->kept = 0;
    p->dry = open_card(c, &p->card);
    if (p->dry && plan_on(p, a, out) != CUP_OK)
        cup__fail(&c->error, cup_error(p->dry), "%s", cup_error_text(p->dry));
    cup_context_free(p->dry);
    return c->error.status;
}

typedef struct asking {
    cup_context *c;
    planning *p;
    cup_plan *out;
} asking;

static cup_status ask(const cup_training *a, bool *fits, void *user)
{
    const asking *k = user;
    cup_training own = *a;
    CUP_TRY(plan_once(k->c, k->p, &own, k->out));
    *fits = cup__held_fits((double)k->out->held_bytes, k->p->room);
    return CUP_OK;
}

/* The fastest policy that fits, or the one that needs least. */
static cup_status plan_any(cup_context *c, planning *p, cup_training *a, cup_plan *out)
{
    asking k = {c, p, out};
    if (a->recompute != CUP_RECOMPUTE_POLICY_AUTO)
        return plan_once(c, p, a, out);
    return cup__training_choose(a, ask, &k);
}

cup_status cup_training_plan(cup_context *c, const cup_training *training, const char *card,
                             cup_plan *out, void (*report)(const cup_plan_op *op, void *user),
                             void *user)
{
    cup_training a;
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!training || !card || !out)
        return cup__fail(&c->error, CUP_ARGUMENT, "plan: the %s NULL",
                         !training ? "training is" : card ? "place for the plan is" : "card is");
    cup_card known;
    if (!cup_card_find(card, &known))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "plan: the card \"%.40s\" is none of those that are known, as h200, a100 "
                         "or rtx-4090; see cup_card_at",
                         card);
    CUP_TRY(cup__options_take(&c->error, "training", &a, sizeof a, training));
    a.model.size = sizeof a.model;
    planning *p = cup__calloc(1, sizeof *p);
    if (!p)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a plan");
    out->fits = false;
    p->card = known;
    p->room = known.memory_bytes - DRIVER_BYTES;
    if (c->options.memory_limit && (double)c->options.memory_limit < p->room)
        p->room = (double)c->options.memory_limit;
    a.precision = a.precision ? a.precision : "high";
    p->precision = cup__training_is_fp8(&a) ? "high" : a.precision;
    plan_any(c, p, &a, out);
    for (int i = 0; report && c->error.status == CUP_OK && i < p->count; i++)
        report(&p->ops[i], user);
    cup__free(p);
    return c->error.status;
}
