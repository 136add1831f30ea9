/* Calls without computing: a context's device is exchanged for a dry one. */
#include "cuda/dry.h"
#include "tensor/tensor.h"

/* What layers above keep is the device's, but for formulas, which a program may go on using. */
static bool is_exchanged(int slot)
{
    return slot != CUP__SLOT_PROGRAMS && slot != CUP__SLOT_SCORES;
}

cup_status cup__rehearsal_begin(cup_context *c, cup__rehearsal *r)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cup__device *dry;
    CUP_TRY(cup__dry_open(&c->error, facts->arch, &dry));
    cup__dry_like(cup__cuda_of(dry), facts);
    *r = (cup__rehearsal){.device = c->device, .random = c->random, .stop = c->stop};
    for (int i = 0; i < CUP__SLOTS; i++)
        if (is_exchanged(i)) {
            r->slots[i] = c->slots[i];
            c->slots[i] = (cup__slot){0};
        }
    c->stop = NULL;
    c->device = dry;
    return CUP_OK;
}

/* Frees tensors in memory that is about to go; whether there were any. */
static bool free_kept(cup_context *c)
{
    bool found = false;
    for (cup_tensor *t = c->kept; t;) {
        bool stray = cup__dry_holds(c->device, t->storage->data);
        found |= stray;
        if (stray)
            cup_tensor_free(t); /* and its gradient, which may be the next one */
        t = stray ? c->kept : t->next;
    }
    return found;
}

cup_status cup__rehearsal_end(cup_context *c, cup__rehearsal *r)
{
    cup__device *dry = c->device;
    bool kept = free_kept(c);
    for (int i = 0; i < CUP__SLOTS; i++)
        if (is_exchanged(i)) {
            if (c->slots[i].kept)
                c->slots[i].free(c->slots[i].kept);
            c->slots[i] = r->slots[i];
        }
    c->device = r->device;
    c->random = r->random;
    c->stop = r->stop;
    r->device = dry;
    return kept ? CUP_STATE : CUP_OK;
}

void cup__rehearsal_close(cup__rehearsal *r)
{
    r->device->calls->close(r->device);
}
