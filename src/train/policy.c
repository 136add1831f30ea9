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
    CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_BLOCK};
#define COUNT (sizeof order / sizeof *order)

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

cup_status cup__training_policy(cup_context *c, cup_trainer *t, cup_training *own)
{
    char bytes[32], room_text[32];
    t->recompute = own->recompute;
    if (own->recompute != CUP_RECOMPUTE_POLICY_AUTO)
        return CUP_OK;
    if (t->among || t->pipe || t->ring || t->experts)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "training: the policy \"auto\" is for processes that have the whole model "
                         "each; name none, norms or block, which cupola plan --gpus compares");
    cup__text text = {0};
    double room = room_of(c), needs = 0;
    size_t i = 0;
    for (bool fits = false; !fits && i < COUNT; i++) {
        own->recompute = order[i];
        if (!c->device->is_cuda)
            needs = cup__training_needs(own);
        else if (rehearse(c, own, &needs) != CUP_OK)
            break;
        fits = needs <= room;
        cup__text_add(&text, "%s%s needs %s", i ? ", " : "", cup_recompute_policy_name(order[i]),
                      cup__text_bytes(needs, bytes));
    }
    t->recompute = own->recompute;
    snprintf(t->policy, sizeof t->policy, "%s: %s, and %s may be used",
             cup_recompute_policy_name(t->recompute), cup__text_string(&text),
             cup__text_bytes(room, room_text));
    cup__text_free(&text);
    return c->error.status;
}

const char *cup_trainer_policy_text(const cup_trainer *t)
{
    return t && t->policy[0] ? t->policy : NULL;
}
