/* Stages of a model, one behind the other on several processes, and the batches of a step on their
 * way through them: one forward, one backward (Narayanan and others 2019, "PipeDream: generalized
 * pipeline parallelism for DNN training", without its versions of weights), in the order of
 * train/schedule.h.
 *
 * Where the processes that have the same stage share out its parameters, too (stage 3 of an
 * optimizer's `split`), a block's come before each of its uses, forward and backward of each batch,
 * and go behind it. To hold them from the first batch of a step to the last would bring them once
 * and not twice a batch; but then a stage's whole parameters are there while most is kept of what
 * forward makes, which is all that stage 2 takes at its worst moment, and stage 2 brings them once
 * as well. So who has the memory takes that. Those who have the same stage have the same turns, and
 * bring the same at each; what comes ahead is there before a turn passes something on, so that of
 * two ways on a card neither waits for the other. */
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "grad/tape.h"
#include "nn/parameters.h"
#include "optim/loss_scale.h"
#include "tensor/away.h"
#include "train/schedule.h"
#include "train/together.h"

/* So many batches are scheduled at a time, which of 64 stages takes less than a second. */
#define SCHEDULED 4096
/* Tapes of a context are told apart by a number below this one. */
#define TAPES 256

static void passage_end(cup__passage *p)
{
    cup_tensor_free(p->x);
    cup_tensor_free(p->y);
    cup_tensor_free(p->d);
    cup_tensor_free(p->owed);
    p->x = p->y = p->d = p->owed = NULL;
}

/* Takes what another stage passes on, of as many as there are. */
static cup_status take(cup_loop *l, cup_tensor **to, int from)
{
    const cup_loop_options *o = &l->options;
    *to = cup_keep(cup_tensor_new(l->c, o->between_dtype, o->between_ndim, o->between));
    return *to ? cup_comm_receive(l->pipe, *to, from) : l->c->error.status;
}

static cup_status pass(cup_loop *l, cup_tensor *t, int to)
{
    bool was = cup_grad_recording(l->c, false);
    cup_tensor *plain = t ? cup__contiguous(l->c, t) : NULL;
    cup_grad_recording(l->c, was);
    return plain ? cup_comm_send(l->pipe, plain, to) : l->c->error.status;
}

/* Whether a chunk of this stage is the first of all, or the last. */
static bool is_first(const cup__pipeline *s, int chunk)
{
    return s->at == 0 && chunk == 0;
}

static bool is_last(const cup__pipeline *s, int chunk)
{
    return s->at == s->last && chunk == s->chunks - 1;
}

static cup_status check_made(cup_loop *l, const cup_tensor *y, int chunk, int64_t i)
{
    const cup_loop_options *o = &l->options;
    char text[CUP__SHAPE_TEXT];
    bool alike = y && y->dtype == o->between_dtype && y->ndim == o->between_ndim;
    for (int d = 0; alike && d < y->ndim; d++)
        alike = y->shape[d] == o->between[d];
    if (l->c->error.status != CUP_OK)
        return l->c->error.status;
    if (y && (alike || is_last(l->pipeline, chunk)) && y->scope >= 0)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_SHAPE,
                     "training: stage %d has made %s of batch %lld; it must be a new tensor as "
                     "`between` of the options says",
                     l->pipeline->at, y ? cup__tensor_text(y, text) : "nothing", (long long)i);
}

static cup_tensor *call(cup_loop *l, int64_t i, int chunk, cup_tensor *x)
{
    const cup_loop_calls *calls = &l->calls;
    cup__callback callback;
    cup__callback_begin(l->c, &callback);
    cup_tensor *y = calls->chunk ? calls->chunk(l->c, i, chunk, x, calls->user)
                                 : calls->stage(l->c, i, x, calls->user);
    return cup__loop_called(l, &callback) == CUP_OK ? y : NULL;
}

/* Adds to the loss of a batch what a chunk of this stage knows of it, which others do not. */
static cup_status note_more(cup_loop *l, cup_tensor *more, int64_t i)
{
    const cup__shape one = {.dtype = CUP_F32};
    bool was = cup_grad_recording(l->c, false);
    cup_tensor *place = cup__tensor_view(l->losses, &one, NULL, i);
    cup_tensor *plain = cup_cast(l->c, more, CUP_F32);
    cup_tensor *sum = place && plain ? cup_add(l->c, place, plain) : NULL;
    cup_grad_recording(l->c, was);
    return sum ? cup__loop_note(l, sum, i) : l->c->error.status;
}

/* What is made of a batch lives until its way back. */
static cup_status forward(cup_loop *l, cup__passage *p, int chunk, int64_t i)
{
    cup__loop_draw(l, i);
    if (p->x)
        cup_require_grad(p->x);
    cup_tensor *y = call(l, i, chunk, p->x), *owed = cup__loop_owed(l);
    CUP_TRY(check_made(l, y, chunk, i));
    p->y = cup_keep(y);
    p->owed = owed ? cup_keep(owed) : NULL;
    if (owed)
        CUP_TRY(note_more(l, owed, i));
    return is_last(l->pipeline, chunk) ? note_more(l, y, i) : l->c->error.status;
}

/* With the gradient of what was made, or from the loss; from what is owed in any case. */
static cup_status backward(cup_loop *l, cup__passage *p, int chunk, int64_t i)
{
    const cup__pipeline *s = l->pipeline;
    cup_optimizer *o = l->optimizer;
    cup_tensor *const made[] = {p->y, p->owed};
    cup_tensor *const gradients[] = {p->d ? p->d : cup__loss_scale_slope(o, p->y),
                                     p->owed ? cup__loss_scale_slope(o, p->owed) : NULL};
    CUP_TRY(l->c->error.status);
    cup__loop_pass(l, "backward", i);
    if (s->closing)
        cup__buckets_watch(l, true);
    cup_status status = cup_backward_from(l->c, made, gradients, p->owed ? 2 : 1);
    if (s->closing)
        cup__buckets_watch(l, false);
    CUP_TRY(status);
    cup_tensor_free(p->y);
    cup_tensor_free(p->d);
    cup_tensor_free(p->owed);
    p->y = p->d = p->owed = NULL;
    if (is_first(s, chunk) || p->x->grad)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_STATE,
                     "training: what stage %d makes of batch %lld does not depend on what the "
                     "stage before has made",
                     s->at, (long long)i);
}

static cup_status turn(cup_loop *l, const cup__turn *t, int64_t i)
{
    const cup__pipeline *s = l->pipeline;
    cup__passage *p = &s->passages[t->slot];
    if (t->kind != CUP__FORWARD && t->kind != CUP__BACKWARD)
        CUP_TRY(cup__split_arrive(l->optimizer));
    int stages = s->last + 1, next = (s->at + 1) % stages, before = (s->at + s->last) % stages;
    switch (t->kind) {
    case CUP__TAKE: return take(l, &p->x, before);
    case CUP__FORWARD: return forward(l, p, t->chunk, i);
    case CUP__PASS: return pass(l, p->y, next);
    case CUP__TAKE_BACK: return take(l, &p->d, next);
    case CUP__BACKWARD: return backward(l, p, t->chunk, i);
    default: return pass(l, p->x->grad, before);
    }
}

static cup_status run_turn(cup_loop *l, const cup__turn *t, int64_t i)
{
    cup__passage *p = &l->pipeline->passages[t->slot];
    cup__tape *was = cup__tape_exchange(l->c, p->tape);
    cup_scope_open(l->c);
    cup_status status = turn(l, t, i);
    cup_scope_return(l->c, NULL);
    bool first = is_first(l->pipeline, t->chunk);
    if (t->kind == CUP__PASS_BACK || (t->kind == CUP__BACKWARD && first))
        passage_end(p);
    cup__tape_exchange(l->c, was);
    return status;
}

static cup_status make_passages(cup_loop *l, int count)
{
    cup__pipeline *s = l->pipeline;
    while (s->depth < count && count < TAPES) {
        if (!cup__grow(&s->passages, &s->room, (size_t)s->depth, sizeof *s->passages))
            return cup__fail(&l->c->error, CUP_MEMORY,
                             "out of host memory for the stages of a model");
        s->passages[s->depth] = (cup__passage){.tape = cup__tape_new(l->c, s->depth + 1)};
        CUP_TRY(l->c->error.status);
        s->depth++;
    }
    if (s->depth >= count)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_UNSUPPORTED,
                     "training: %d stages of %d chunks have %d batches under way, and %d are the "
                     "most; take fewer chunks",
                     s->last + 1, s->chunks, count, TAPES - 1);
}

/* Whether a turn is this stage's last one of a step, and one of backward. That of others is to pass
 * something on, for which those before wait: sums of gradients begin behind it, beside what these
 * still compute. */
static bool closes(const cup_loop *l, const cup__schedule *schedule, int64_t k, int64_t to)
{
    return to == l->share && k + 1 == schedule->count &&
           schedule->turns[k].kind == CUP__BACKWARD;
}

/* The batches [from, to) of this process's share. */
static cup_status compute(cup_loop *l, int64_t from, int64_t to)
{
    cup__pipeline *s = l->pipeline;
    cup__schedule schedule;
    const cup__stages of = {s->last + 1, s->chunks, to - from, true};
    CUP_TRY(cup__schedule_make(&l->c->error, &of, s->at, &schedule));
    cup_status status = make_passages(l, schedule.slots);
    for (int64_t k = 0; k < schedule.count && status == CUP_OK; k++) {
        s->closing = closes(l, &schedule, k, to);
        status = run_turn(l, &schedule.turns[k], l->first + from + schedule.turns[k].batch);
    }
    s->closing = false;
    cup__free(schedule.turns);
    return status;
}

cup_status cup__pipeline_compute(cup_loop *l, int64_t from, int64_t to)
{
    cup__pipeline *s = l->pipeline;
    cup_status status = CUP_OK;
    cup__device *device = l->c->device;
    if (!cup__device_is_dry(device))
        cup_comm_step(l->pipe, l->steps);
    if (from == 0)
        CUP_TRY(device->calls->fill(device, l->own_losses->data, 0,
                                    (size_t)l->share * sizeof(float)));
    for (int64_t end; from < to && status == CUP_OK; from = end) {
        end = to - from < SCHEDULED ? to : from + SCHEDULED;
        status = compute(l, from, end);
    }
    for (int k = 0; k < s->depth && status != CUP_OK; k++) {
        cup__tape *was = cup__tape_exchange(l->c, s->passages[k].tape);
        cup_tape_clear(l->c);
        passage_end(&s->passages[k]);
        cup__tape_exchange(l->c, was);
    }
    return status;
}

static int place_of(const cup_loop *l, const char *name)
{
    const cup_optimizer *o = l->optimizer;
    for (int i = 0; i < o->count; i++) {
        const char *own = cup__parameters_name(l->list, o->parameters[i]);
        if (own && !strcmp(own, name))
            return i;
    }
    return -1;
}

static cup_status find_shared(cup_loop *l)
{
    cup__pipeline *s = l->pipeline;
    for (int64_t i = 0; i < s->weights.count; i++) {
        const cup__listed *a = &s->weights.list[i];
        if (!(a->stages & (a->stages - 1)))
            continue;
        if (s->sharing && s->sharing != a->stages)
            return cup__fail(&l->c->error, CUP_UNSUPPORTED,
                             "training: %s is in other stages than what other stages share; let "
                             "the same stages have all of it",
                             a->name);
        s->sharing = a->stages;
        int place = place_of(l, a->name);
        if (place >= 0)
            s->shared[s->shared_count++] = place;
    }
    return CUP_OK;
}

/* What several have is counted in the norm once, by the first stage that has it. */
static cup_status count_norm(cup_loop *l)
{
    const cup__pipeline *s = l->pipeline;
    cup_optimizer *o = l->optimizer;
    bool *counted = cup__calloc((size_t)o->count + 1, sizeof *counted);
    if (!counted)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    bool owned = cup__split_stage(o) > 1; /* each gradient is on one process of a stage */
    int rank = cup_comm_rank(l->experts ? l->experts : l->among);
    for (int i = 0; i < o->count; i++)
        counted[i] = owned || rank < cup_comm_count(o->divided ? o->divided[i] : NULL);
    bool first = !(s->sharing & (((uint64_t)1 << s->at) - 1));
    for (int i = 0; i < s->shared_count && !first; i++)
        counted[s->shared[i]] = false;
    return owned ? cup__split_count(o, l->pipe, counted)
                 : cup__optimizer_count(o, l->model, counted);
}

cup_status cup__pipeline_make(cup_loop *l)
{
    if (!l->pipe)
        return CUP_OK;
    cup__pipeline *s = l->pipeline = cup__calloc(1, sizeof *s);
    if (!s)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
    s->at = cup_comm_rank(l->pipe);
    s->last = cup_comm_count(l->pipe) - 1;
    s->chunks = l->calls.chunk ? (int)l->options.chunks : 1;
    s->shared = cup__calloc((size_t)l->optimizer->count + 1, sizeof *s->shared);
    if (!s->shared)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
    CUP_TRY(cup__catalogue_make(l, false, &s->weights));
    CUP_TRY(cup__catalogue_make(l, true, &s->states));
    CUP_TRY(find_shared(l));
    if (s->sharing)
        s->sharers = cup_comm_split_new(l->pipe, s->sharing >> s->at & 1 ? 0 : -1);
    CUP_TRY(l->c->error.status);
    return count_norm(l);
}

void cup__pipeline_free(cup_loop *l)
{
    cup__pipeline *s = l->pipeline;
    if (!s)
        return;
    for (int k = 0; k < s->depth; k++)
        cup__tape_free(s->passages[k].tape);
    cup_comm_free(s->sharers);
    cup__free(s->passages);
    cup__free(s->shared);
    cup__free(s->weights.list);
    cup__free(s->states.list);
    cup__free(s);
    l->pipeline = NULL;
}

cup_status cup__pipeline_reduce(cup_loop *l)
{
    const cup__pipeline *s = l->pipeline;
    cup_optimizer *o = l->optimizer;
    int count = 0;
    if (!s || !s->sharers)
        return CUP_OK;
    for (int i = 0; i < s->shared_count; i++) {
        cup_tensor *d = cup_grad(o->parameters[s->shared[i]]);
        if (!d)
            return cup__fail(&l->c->error, CUP_STATE,
                             "training: stage %d has no gradient of %s, which other stages have "
                             "too; use it in each of them",
                             s->at, cup__parameters_name(l->list, o->parameters[s->shared[i]]));
        o->gradients[count++] = d;
    }
    return cup_comm_all_reduce(s->sharers, o->gradients, count, CUP_COMBINE_SUM);
}

/* Those of the list that the sharing stages have and no others. */
static int choose_shared(const cup__pipeline *s, const cup__catalogue *catalogue,
                         const cup_named *list, int64_t count, cup_tensor **room)
{
    int found = 0;
    for (int64_t i = 0; i < catalogue->count; i++)
        for (int64_t k = 0; k < count && catalogue->list[i].stages == s->sharing; k++)
            if (!strcmp(catalogue->list[i].name, list[k].name))
                room[found++] = list[k].tensor;
    return found;
}

/* Of what is brought, each who has it at the time gets it, its owner among them. */
static cup_status spread_brought(cup_loop *l)
{
    const cup__pipeline *s = l->pipeline;
    cup_context *c = l->c;
    for (int i = 0; i < s->shared_count; i++) {
        cup_tensor *t = l->optimizer->parameters[s->shared[i]];
        CUP_TRY(cup__away_begin(c, &t, 1, false));
        cup_status status = cup_comm_broadcast(s->sharers, &t, 1, 0);
        cup__away_end(c);
        CUP_TRY(status);
    }
    cup__split_let_go(l->optimizer);
    return c->error.status;
}

cup_status cup__pipeline_spread(cup_loop *l)
{
    const cup__pipeline *s = l->pipeline;
    int64_t weights, states;
    if (!s || !s->sharers)
        return CUP_OK;
    if (cup__split_stage(l->optimizer) > 2)
        return spread_brought(l);
    const cup_named *weight = cup_parameters_named(l->list, &weights);
    const cup_named *state = cup_optimizer_state(l->optimizer, &states);
    CUP_TRY(l->c->error.status);
    /* States that are split are renewed where they are. */
    if (l->options.optimizer.split)
        states = 0;
    cup_tensor **room = cup__calloc((size_t)(weights + states) + 1, sizeof *room);
    if (!room)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
    int found = choose_shared(s, &s->weights, weight, weights, room);
    found += choose_shared(s, &s->states, state, states, room + found);
    cup_status status = cup_comm_broadcast(s->sharers, room, found, 0);
    cup__free(room);
    return status;
}
