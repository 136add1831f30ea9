/* How much of what forward makes is computed again, where memory is to say. */
#include <stdio.h>
#include <string.h>

#include "base/room.h"
#include "base/text.h"
#include "cuda/dry.h"
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
        if (fits && i > 0)
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

int64_t cup__training_held(cup_context *dry, cup_trainer *t)
{
    int64_t at_rest = use_of(dry).allocated;
    cup__dry_forget_peak(dry->device);
    cup__loop_rehearse_step(t->loop);
    int64_t step = use_of(dry).peak_allocated;
    cup__dry_forget_peak(dry->device);
    cup__loop_rehearse_evaluation(t->loop);
    return cup__held_bytes(at_rest, step, use_of(dry).peak_allocated);
}

/* The run is begun on a card like the context's that is not there. */
static cup_status rehearse(cup_context *c, const cup_training *a, double *bytes)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cup_context *dry = cup__context_dry(facts->arch);
    cup_trainer t = {0};
    if (!dry)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a rehearsal");
    if (dry->error.status == CUP_OK) {
        cup__dry_like(cup__cuda_of(dry->device), facts);
        cup_scope_open(dry);
        if (cup__training_precision(dry, a) == CUP_OK && cup__training_dry(dry, a, &t) == CUP_OK)
            *bytes = (double)cup__training_held(dry, &t);
        cup_scope_return(dry, NULL);
        cup__training_dry_free(&t);
    }
    if (dry->error.status != CUP_OK)
        cup__fail(&c->error, dry->error.status, "%s", cup_error_text(dry));
    cup_context_free(dry);
    return c->error.status;
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
    if (k->c->device->is_cuda)
        CUP_TRY(rehearse(k->c, a, &needs));
    else
        needs = cup__training_needs(a);
    *fits = k->c->device->is_cuda ? cup__held_fits(needs, k->room) : needs <= k->room;
    /* What is found on the way to the fewest blocks is not told. */
    if (a->recompute_blocks == 0)
        cup__text_add(&k->text, "%s%s needs %s", cup__text_string(&k->text)[0] ? ", " : "",
                      cup_recompute_policy_name(a->recompute), cup__text_bytes(needs, bytes));
    return CUP_OK;
}

/* As "norms in 4 of 12 blocks". */
static void say(cup_trainer *t, const cup_training *own, const asking *k)
{
    char some[64] = "", room[32];
    if (own->recompute_blocks > 0)
        snprintf(some, sizeof some, " in %lld of %lld blocks", (long long)own->recompute_blocks,
                 (long long)own->model.layers);
    snprintf(t->policy, sizeof t->policy, "%s%s: %s, and %s may be used",
             cup_recompute_policy_name(own->recompute), some, cup__text_string(&k->text),
             cup__text_bytes(k->room, room));
}

cup_status cup__training_policy(cup_context *c, cup_trainer *t, cup_training *own)
{
    if (own->recompute == CUP_RECOMPUTE_POLICY_AUTO) {
        if (t->among || t->pipe || t->ring || t->experts)
            return cup__fail(&c->error, CUP_UNSUPPORTED,
                             "training: the policy \"auto\" is for processes that have the whole "
                             "model each; name none, norms, pointwise or block, which cupola plan "
                             "--gpus compares");
        asking k = {.c = c, .room = room_of(c)};
        if (cup__training_choose(own, ask, &k) == CUP_OK)
            say(t, own, &k);
        cup__text_free(&k.text);
    }
    t->recompute = own->recompute;
    t->recompute_blocks = own->recompute_blocks;
    return c->error.status;
}

const char *cup_trainer_policy_text(const cup_trainer *t)
{
    return t && t->policy[0] ? t->policy : NULL;
}
