/* Parameters whose values are with the process that they belong to, and come to all when a call
 * needs them, parts to all that have the same (stage 3). Some of them together are a unit, in the
 * order of the list, which is about that of their use. What is needed next is known from the step
 * before and comes ahead. All processes make the same calls, so all bring the same units in the
 * same order. */
#include "base/env.h"
#include "base/memory.h"
#include "cuda/dry.h"
#include "optim/split.h"
#include "tensor/away.h"

#define RESIDENT 2 /* units that stay beside the one ahead: a layer may be cut in two */

typedef struct unit {
    int first, end; /* its parameters */
    bool here, open; /* open: on its way */
    uint64_t used;  /* the call that used it last */
} unit;

/* The units in the order in which calls need them, from step to step. */
typedef struct trace {
    int *units;
    size_t count, capacity;
} trace;

struct cup__brought {
    cup__bringer bringer; /* what is known of it to others stands first */
    cup_optimizer *o;
    cup_tensor **list; /* of a unit */
    int *owners;
    cup__away **away; /* of each parameter; its storage's */
    unit *units;
    int count, here;
    uint64_t calls;
    trace last, now; /* of the step before, and of this one */
    cup_comm *open;  /* by which units are on their way */
    bool strange;    /* this step does not follow the last one */
};

static cup_status join(struct cup__brought *b)
{
    cup_comm *open = b->open;
    for (int i = 0; i < b->count; i++)
        b->units[i].open = false;
    b->open = NULL;
    return open ? cup__comm_join(open) : CUP_OK;
}

static void let_go(struct cup__brought *b, unit *u)
{
    cup__device *device = b->o->c->device;
    if (u->open)
        join(b);
    for (int i = u->first; i < u->end; i++) {
        cup__away *away = b->away[i];
        if (away->kept || !away->here)
            continue;
        device->calls->release(device, b->o->parameters[i]->storage->data);
        away->here = false;
    }
    b->here -= u->here;
    u->here = false;
}

/* Makes room; what the calls at hand use, or the next one will, stays. */
static void make_room(struct cup__brought *b, int next)
{
    while (b->here > RESIDENT && b->bringer.depth == 0) {
        unit *oldest = NULL;
        for (int i = 0; i < b->count; i++) {
            unit *u = &b->units[i];
            if (u->here && i != next && u->used < b->calls && (!oldest || u->used < oldest->used))
                oldest = u;
        }
        if (!oldest)
            return;
        let_go(b, oldest);
    }
}

static cup_status give_memory(struct cup__brought *b, unit *u)
{
    cup__device *device = b->o->c->device;
    for (int i = u->first; i < u->end; i++) {
        cup_tensor *t = b->o->parameters[i];
        cup__storage *storage = t->storage;
        if (!b->away[i]->here)
            CUP_TRY(device->calls->allocate(device, storage->bytes ? storage->bytes : 1,
                                            "parameters", &storage->data));
        b->away[i]->here = true;
        t->data = (char *)storage->data + t->offset;
    }
    return CUP_OK;
}

static cup_status bring_unit(struct cup__brought *b, unit *u)
{
    cup_optimizer *o = b->o;
    cup_comm *among = cup__split_among(o->split, u->first);
    int count = 0;
    /* One communicator at a time, so that none waits for a card that another one fills. */
    if (b->open && b->open != among)
        CUP_TRY(join(b));
    b->here += !u->here;
    u->here = u->open = true;
    u->used = b->calls;
    CUP_TRY(give_memory(b, u));
    if (cup__device_is_dry(o->c->device) || cup_comm_count(among) < 2)
        return CUP_OK;
    for (int i = u->first; i < u->end; i++) {
        b->list[count] = o->parameters[i];
        b->owners[count++] = o->split->owner[i];
    }
    b->open = among;
    return cup__comm_bring_begin(among, b->list, b->owners, count);
}

static bool add(cup_context *c, trace *t, int number)
{
    if (!cup__grow(&t->units, &t->capacity, t->count, sizeof *t->units)) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an optimizer");
        return false;
    }
    t->units[t->count++] = number;
    return true;
}

/* What the last step needed behind the unit that this one has come to; -1: that is not known. */
static int next_of(struct cup__brought *b, int number)
{
    size_t at = b->now.count - 1;
    b->strange |= at >= b->last.count || b->last.units[at] != number;
    return b->strange || at + 1 >= b->last.count ? -1 : b->last.units[at + 1];
}

/* The step has come to a unit. */
static cup_status come_to(struct cup__brought *b, int number)
{
    unit *u = &b->units[number];
    int next = -1;
    bool other = !b->now.count || b->now.units[b->now.count - 1] != number;
    if (other && !add(b->o->c, &b->now, number))
        return CUP_MEMORY;
    u->used = b->calls;
    if (!u->here)
        CUP_TRY(bring_unit(b, u));
    if (u->open)
        CUP_TRY(join(b));
    if (other)
        next = next_of(b, number);
    make_room(b, next);
    return next >= 0 && !b->units[next].here ? bring_unit(b, &b->units[next]) : CUP_OK;
}

static cup_status bring(cup__bringer *bringer, cup_tensor *const *in, int count)
{
    struct cup__brought *b = (struct cup__brought *)bringer;
    b->calls++;
    for (int i = 0; i < count; i++)
        if (in[i] && in[i]->storage->away && in[i]->storage->away->by == bringer)
            CUP_TRY(come_to(b, in[i]->storage->away->number));
    return CUP_OK;
}

void cup__split_let_go(cup_optimizer *o)
{
    struct cup__brought *b = o->split ? o->split->brought : NULL;
    for (int i = 0; b && i < b->count; i++)
        if (b->units[i].here)
            let_go(b, &b->units[i]);
}

cup_status cup__split_arrive(cup_optimizer *o)
{
    struct cup__brought *b = o->split ? o->split->brought : NULL;
    return b && b->open ? join(b) : CUP_OK;
}

void cup__split_aside(cup_optimizer *o, bool on)
{
    struct cup__brought *b = o->split ? o->split->brought : NULL;
    if (b)
        b->bringer.paused = on;
    if (b && on)
        cup__split_let_go(o);
}

void cup__split_pause(cup_optimizer *o, bool on)
{
    struct cup__brought *b = o->split ? o->split->brought : NULL;
    cup__split_aside(o, on);
    if (!b || !on)
        return;
    trace last = b->last;
    b->last = b->now;
    b->now = last;
    b->now.count = 0;
    b->strange = false;
}

bool cup__split_shared_out(const cup_tensor *t)
{
    return t->storage->away != NULL;
}

bool cup__split_elsewhere(const cup_tensor *t)
{
    return t->storage->away && !t->storage->away->kept;
}

/* Each parameter lies in memory of its own. */
static cup_status check(cup_optimizer *o)
{
    cup_context *c = o->c;
    char text[CUP__SHAPE_TEXT];
    if (c->bringer)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "optimizer: another one of this context has split its parameters over "
                         "processes; take another context");
    for (int i = 0; i < o->count; i++) {
        const cup_tensor *t = o->parameters[i];
        const cup__storage *storage = t->storage;
        CUP_TRY(cup__away_check(t, "optimizing"));
        if (storage->foreign || t->offset ||
            storage->bytes != (size_t)(t->count * cup_dtype_size(t->dtype)))
            return cup__fail(&c->error, CUP_UNSUPPORTED,
                             "optimizer: parameter %d, %s, lies in memory that is not its own "
                             "alone, and cannot be left to another process; copy it",
                             i, cup__tensor_text(t, text));
    }
    return CUP_OK;
}

/* The list cut into units of about so many bytes that come from the same processes; 0: each
 * parameter is one. */
static void cut(struct cup__brought *b, int64_t most)
{
    const cup_optimizer *o = b->o;
    const struct cup__split *s = o->split;
    for (int i = 0; i < o->count;) {
        unit *u = &b->units[b->count];
        int64_t bytes = 0;
        u->first = i;
        do {
            bytes += (int64_t)o->parameters[i]->storage->bytes;
            b->away[i++]->number = b->count;
        } while (i < o->count && bytes + (int64_t)o->parameters[i]->storage->bytes <= most &&
                 cup__split_among(s, i) == cup__split_among(s, u->first));
        u->end = i;
        b->count++;
    }
}

static cup_status make(cup_optimizer *o, struct cup__brought *b, int64_t megabytes)
{
    size_t count = (size_t)o->count;
    b->o = o;
    b->bringer.bring = bring;
    b->list = cup__calloc(count, sizeof *b->list);
    b->owners = cup__calloc(count, sizeof *b->owners);
    b->away = cup__calloc(count, sizeof(cup__away *));
    b->units = cup__calloc(count, sizeof *b->units);
    bool made = b->list && b->owners && b->away && b->units;
    for (int i = 0; made && i < o->count; i++)
        made = (b->away[i] = cup__calloc(1, sizeof(cup__away))) != NULL;
    if (!made)
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    cut(b, megabytes * 1000000);
    return CUP_OK;
}

static void free_brought(struct cup__brought *b, bool all)
{
    for (int i = 0; all && b->away && i < b->o->count; i++)
        cup__free(b->away[i]);
    cup__free(b->list);
    cup__free(b->owners);
    cup__free(b->away);
    cup__free(b->units);
    cup__free(b->last.units);
    cup__free(b->now.units);
    cup__free(b);
}

cup_status cup__brought_make(cup_optimizer *o)
{
    int64_t megabytes;
    cup__device *device = o->c->device;
    CUP_TRY(check(o));
    CUP_TRY(cup__env_integer(&o->c->error, CUP__ENV_COMM_BUCKET, &megabytes));
    struct cup__brought *b = cup__calloc(1, sizeof *b);
    cup_status status = b ? make(o, b, megabytes)
                          : cup__fail(&o->c->error, CUP_MEMORY,
                                      "out of host memory for an optimizer");
    if (status != CUP_OK) {
        if (b)
            free_brought(b, true);
        return status;
    }
    CUP_TRY(device->calls->synchronize(device));
    for (int i = 0; i < o->count; i++) {
        cup__storage *storage = o->parameters[i]->storage;
        cup__free(storage->away);
        storage->away = b->away[i];
        b->away[i]->by = &b->bringer;
        b->away[i]->here = b->away[i]->kept = cup__split_is_own(o->split, i);
        if (!b->away[i]->kept)
            device->calls->release(device, storage->data);
    }
    o->split->brought = b;
    o->c->bringer = &b->bringer;
    o->c->away = true;
    return CUP_OK;
}

/* The parameters keep what says that they are away. */
void cup__brought_free(cup_optimizer *o)
{
    struct cup__brought *b = o->split->brought;
    if (!b)
        return;
    if (!o->c->closed) {
        cup__split_let_go(o);
        for (int i = 0; i < o->count; i++)
            b->away[i]->by = NULL;
        o->c->bringer = NULL;
    }
    free_brought(b, false);
    o->split->brought = NULL;
}
