/* States of an optimizer that are split over processes (stage 1 of Rajbhandari and others 2020,
 * "ZeRO: memory optimizations toward training trillion parameter models"): each parameter's belong
 * to one process, which makes its steps. */
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/split.h"

cup_comm *cup__split_among(const struct cup__split *s, int i)
{
    return i >= 0 ? s->among[i] : s->comm;
}

bool cup__split_is_own(const struct cup__split *s, int i)
{
    return s->owner[i] == cup_comm_rank(cup__split_among(s, i));
}

/* The largest share so far gets nothing: each parameter goes to the process that has least. The
 * parts of one go to processes that follow each other, which share out its whole. */
static void choose_owners(struct cup__split *s, const cup_parameter *parameters, int count,
                          int64_t *load)
{
    int all = cup_comm_count(s->comm);
    for (int i = 0; i < count; i++) {
        int least = 0, each = all / cup_comm_count(cup__split_among(s, i));
        for (int r = each; r < all; r += each)
            if (load[r] < load[least])
                least = r;
        s->owner[i] = least / each;
        for (int r = least; r < least + each; r++)
            load[r] += parameters[i].tensor ? parameters[i].tensor->count : 0;
    }
}

/* Those who have the same part as this process of what so many share out. */
static cup_status find_same(cup_optimizer *o, struct cup__split *s, cup_comm *sharers,
                            cup_comm **out)
{
    int each = cup_comm_count(sharers), rank = cup_comm_rank(s->comm), i = 0;
    while (i < s->alike_count && s->alike[i].sharers != sharers)
        i++;
    if (i == s->alike_count) {
        s->alike[i].sharers = sharers;
        s->alike[i].same = cup_comm_split_new(s->comm, rank % each);
        s->alike_count++;
    }
    const cup_comm *same = *out = s->alike[i].same;
    CUP_TRY(o->c->error.status);
    if (cup_comm_count(same) * each == cup_comm_count(s->comm) &&
        cup_comm_rank(same) == rank / each && cup_comm_rank(sharers) == rank % each)
        return CUP_OK;
    return cup__fail(&o->c->error, CUP_ARGUMENT,
                     "optimizer: %d processes that split states are not alike groups of %d that "
                     "share out parameters; make each of as many ranks that follow each other",
                     cup_comm_count(s->comm), each);
}

static cup_status find_alike(cup_optimizer *o, struct cup__split *s,
                             const cup__portion *const *parts)
{
    for (int i = 0; i < o->count; i++) {
        s->among[i] = s->comm;
        if (parts && parts[i])
            CUP_TRY(find_same(o, s, parts[i]->comm, &s->among[i]));
    }
    return CUP_OK;
}

cup_status cup__split_make(cup_optimizer *o, const cup_parameter *parameters,
                           const cup__portion *const *parts)
{
    cup_comm *comm = o->options.split;
    if (cup_comm_count(comm) < 2)
        return CUP_OK;
    size_t count = (size_t)o->count;
    o->split = cup__calloc(1, sizeof *o->split);
    int64_t *load = cup__calloc((size_t)cup_comm_count(comm), sizeof *load);
    if (o->split) {
        struct cup__split *s = o->split;
        *s = (struct cup__split){.comm = comm,
                                 .stage = o->options.stage > 1 ? o->options.stage : 1,
                                 .at = -1,
                                 .owner = cup__calloc(count, sizeof(int)),
                                 .among = cup__calloc(count, sizeof(cup_comm *)),
                                 .waiting = cup__calloc(count, sizeof(int)),
                                 .list_owners = cup__calloc(count, sizeof(int)),
                                 .list = cup__calloc(count, sizeof(cup_tensor *))};
        if (load && s->owner && s->among && s->list && s->waiting && s->list_owners) {
            cup_status status = find_alike(o, s, parts);
            if (status == CUP_OK)
                choose_owners(s, parameters, o->count, load);
            cup__free(load);
            return status == CUP_OK && s->stage > 1 ? cup__split_sums_make(o) : status;
        }
    }
    cup__free(load);
    return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
}

void cup__split_free(cup_optimizer *o)
{
    struct cup__split *s = o->split;
    if (!s)
        return;
    cup__optimizer_whole_free(o);
    cup__brought_free(o);
    cup__split_sums_free(o);
    for (size_t i = 0; i < s->count; i++)
        if (!s->states[i].tensor)
            cup__free((char *)(uintptr_t)s->states[i].name);
    cup__free(s->states);
    for (int i = 0; i < s->alike_count; i++)
        cup_comm_free(s->alike[i].same);
    cup__free(s->among);
    cup__free(s->owner);
    cup__free(s->waiting);
    cup__free(s->list_owners);
    cup__free(s->list);
    cup__free(s);
    o->split = NULL;
}

bool cup__split_owns(const cup_optimizer *o, int i)
{
    if (!o->split)
        return true;
    o->split->at = i;
    return cup__split_is_own(o->split, i);
}

cup_status cup__split_note(cup_optimizer *o, const char *name, cup_tensor *t,
                           const cup__shape *shape)
{
    struct cup__split *s = o->split;
    if (!s)
        return CUP_OK;
    const char *own = t ? name : cup__strdup(name);
    if (!own || !cup__grow(&s->states, &s->capacity, s->count, sizeof *s->states)) {
        if (!t)
            cup__free((char *)(uintptr_t)own);
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    }
    s->states[s->count++] = (cup__split_state){.name = own,
                                    .tensor = t,
                                    .shape = t ? cup__shape_of(t) : *shape,
                                    .owner = s->at < 0 ? 0 : s->owner[s->at],
                                    .parameter = s->at};
    return CUP_OK;
}

/* At stage 3 all begin with what the first of those has who have the same. */
static cup_status begin_among(cup_optimizer *o, const cup_parameter *parameters, cup_comm *among)
{
    struct cup__split *s = o->split;
    int count = 0;
    for (int i = 0; i < o->count; i++)
        if (cup__split_among(s, i) == among)
            s->list[count++] = parameters[i].tensor;
    return count ? cup_comm_broadcast(among, s->list, count, 0) : CUP_OK;
}

cup_status cup__split_begin(cup_optimizer *o, const cup_parameter *parameters)
{
    struct cup__split *s = o->split;
    if (!s || s->stage < 3)
        return CUP_OK;
    CUP_TRY(begin_among(o, parameters, s->comm));
    for (int i = 0; i < s->alike_count; i++)
        CUP_TRY(begin_among(o, parameters, s->alike[i].same));
    return CUP_OK;
}

static cup_status share(cup_optimizer *o, cup_comm *among)
{
    struct cup__split *s = o->split;
    for (int r = 0; r < cup_comm_count(among); r++) {
        int count = 0;
        for (int i = 0; i < o->count; i++)
            if (s->owner[i] == r && cup__split_among(s, i) == among)
                s->list[count++] = o->parameters[i];
        if (count)
            CUP_TRY(cup_comm_broadcast(among, s->list, count, r));
    }
    return CUP_OK;
}

cup_status cup__split_share(cup_optimizer *o)
{
    const struct cup__split *s = o->split;
    if (!s || s->stage > 2 || cup__device_is_dry(o->c->device))
        return CUP_OK;
    CUP_TRY(share(o, s->comm));
    for (int i = 0; i < s->alike_count; i++)
        CUP_TRY(share(o, s->alike[i].same));
    return CUP_OK;
}

static cup_status renew(cup_optimizer *o, const cup__split_state *a)
{
    cup__device *device = o->c->device;
    cup_tensor *plain = cup_cast(o->c, o->parameters[a->parameter], a->tensor->dtype);
    size_t bytes = (size_t)a->tensor->count * (size_t)cup_dtype_size(a->tensor->dtype);
    return plain ? device->calls->copy(device, a->tensor->data, plain->data, bytes)
                 : o->c->error.status;
}

cup_status cup__split_renew(cup_optimizer *o)
{
    const struct cup__split *s = o->split;
    bool was = cup_grad_recording(o->c, false);
    cup_status status = CUP_OK;
    cup__split_aside(o, true);
    cup_scope_open(o->c);
    for (size_t i = 0; s && i < s->count && status == CUP_OK; i++) {
        const char *part = strrchr(s->states[i].name, '.');
        if (s->states[i].tensor && part && !strcmp(part, ".master"))
            status = renew(o, &s->states[i]);
    }
    cup_scope_return(o->c, NULL);
    cup__split_aside(o, false);
    cup_grad_recording(o->c, was);
    return status;
}

const cup_named *cup__optimizer_whole(cup_optimizer *o, int64_t *count)
{
    struct cup__split *s = o->split;
    if (!s || (cup_comm_rank(s->comm) > 0 && !s->alike_count))
        return cup_optimizer_state(o, count);
    *count = (int64_t)s->count;
    if (s->whole)
        return s->whole;
    s->whole = cup__calloc(s->count, sizeof *s->whole);
    if (!s->whole) {
        cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for the states of an optimizer");
        return NULL;
    }
    for (size_t i = 0; i < s->count; i++) {
        const cup__split_state *a = &s->states[i];
        cup_tensor *t = a->tensor;
        if (!t && cup_comm_rank(s->comm) == 0)
            t = cup_keep(cup__optimizer_room(o, &a->shape));
        s->whole[i] = (cup_named){a->name, t};
    }
    return o->c->error.status == CUP_OK ? s->whole : NULL;
}

int64_t cup__optimizer_state_count(const cup_optimizer *o)
{
    return o->split ? (int64_t)o->split->count : o->state_count;
}

const char *cup__optimizer_state_of(const cup_optimizer *o, int64_t i, cup__shape *shape)
{
    *shape = o->split ? o->split->states[i].shape : cup__shape_of(o->state[i].tensor);
    return o->split ? o->split->states[i].name : o->state[i].name;
}

void cup__optimizer_whole_free(cup_optimizer *o)
{
    struct cup__split *s = o->split;
    if (!s || !s->whole)
        return;
    for (size_t i = 0; i < s->count; i++)
        if (!s->states[i].tensor)
            cup_tensor_free(s->whole[i].tensor);
    cup__free(s->whole);
    s->whole = NULL;
}

/* One state over to all, from its owner or from rank 0. Who has no place for it lends some. */
static cup_status pass(cup_optimizer *o, size_t i, bool from_owner)
{
    struct cup__split *s = o->split;
    const cup__split_state *a = &s->states[i];
    if (cup__split_among(s, a->parameter) != s->comm)
        return CUP_OK;
    cup_scope_open(o->c);
    cup_tensor *t = a->tensor ? a->tensor : s->whole ? s->whole[i].tensor : NULL;
    if (!t)
        t = cup__full(o->c, &a->shape, 0);
    cup_status status =
        t ? cup_comm_broadcast(s->comm, &t, 1, from_owner ? a->owner : 0) : o->c->error.status;
    cup_scope_return(o->c, NULL);
    return status;
}

static cup_status pass_all(cup_optimizer *o, bool from_owner)
{
    int64_t count;
    if (!o->split)
        return CUP_OK;
    cup__optimizer_whole(o, &count);
    CUP_TRY(o->c->error.status);
    for (size_t i = 0; i < o->split->count; i++)
        CUP_TRY(pass(o, i, from_owner));
    return CUP_OK;
}

cup_status cup__optimizer_collect(cup_optimizer *o)
{
    return pass_all(o, true);
}

cup_status cup__optimizer_deal(cup_optimizer *o)
{
    return pass_all(o, false);
}

static const cup__split_state *state_named(const struct cup__split *s, const char *name)
{
    for (size_t i = 0; s && i < s->count; i++)
        if (!strcmp(s->states[i].name, name))
            return &s->states[i];
    return NULL;
}

cup_tensor *cup__optimizer_lent(cup_optimizer *o, const char *name)
{
    const cup__split_state *state = state_named(o->split, name);
    return state ? cup__full(o->c, &state->shape, 0) : NULL;
}

cup_status cup__optimizer_bring(cup_optimizer *o, const char *name, cup_tensor **t)
{
    const cup__split_state *state = state_named(o->split, name);
    if (!state)
        return CUP_OK;
    if (!*t)
        *t = cup__full(o->c, &state->shape, 0);
    cup_comm *among = cup__split_among(o->split, state->parameter);
    return *t ? cup_comm_broadcast(among, t, 1, state->owner) : o->c->error.status;
}
