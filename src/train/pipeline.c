/* Stages of a model, one behind the other on several processes, and the batches of a step on their
 * way through them: one forward, one backward (Narayanan and others 2019, "PipeDream: generalized
 * pipeline parallelism for DNN training", without its versions of weights).
 *
 * On the way between two stages x_i goes one way and its gradient d_i the other. Both ends pass
 * them in one order, x_0 .. x_w, d_0, x_w+1, d_1 .., where w batches are ahead: so neither waits
 * for what the other only gives later, also where a tensor is passed at the very moment that both
 * ask for it, as on the stream of a GPU.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "grad/tape.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "train/together.h"

static cup__passage *passage_of(const cup_loop *l, int64_t k)
{
    return &l->pipeline->passages[k % l->pipeline->depth];
}

static void passage_end(cup__passage *p)
{
    cup_tensor_free(p->x);
    cup_tensor_free(p->y);
    p->x = p->y = NULL;
}

static cup_tensor *between_new(const cup_loop *l)
{
    const cup_loop_options *o = &l->options;
    return cup_tensor_new(l->c, o->between_dtype, o->between_ndim, o->between);
}

static cup_status receive(cup_loop *l, cup_tensor *to, int from)
{
    return to ? cup_comm_receive(l->pipe, to, from) : l->c->error.status;
}

static cup_status send(cup_loop *l, cup_tensor *t, int to)
{
    bool was = cup_grad_recording(l->c, false);
    cup_tensor *plain = t ? cup__contiguous(l->c, t) : NULL;
    cup_grad_recording(l->c, was);
    return plain ? cup_comm_send(l->pipe, plain, to) : l->c->error.status;
}

static cup_status check_made(cup_loop *l, const cup_tensor *y, int64_t i)
{
    const cup_loop_options *o = &l->options;
    char text[CUP__SHAPE_TEXT];
    bool alike = y && y->dtype == o->between_dtype && y->ndim == o->between_ndim;
    for (int d = 0; alike && d < y->ndim; d++)
        alike = y->shape[d] == o->between[d];
    if (l->c->error.status != CUP_OK)
        return l->c->error.status;
    if (y && (alike || l->pipeline->at == l->pipeline->last) && y->scope >= 0)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_SHAPE,
                     "training: stage %d has made %s of batch %lld; it must be a new tensor as "
                     "`between` of the options says",
                     l->pipeline->at, y ? cup__tensor_text(y, text) : "nothing", (long long)i);
}

/* What is made of a batch lives until its way back. */
static cup_status make(cup_loop *l, cup__passage *p, int64_t i)
{
    cup_context *c = l->c;
    const cup__pipeline *s = l->pipeline;
    if (s->at > 0) {
        p->x = cup_keep(between_new(l));
        CUP_TRY(receive(l, p->x, s->at - 1));
        cup_require_grad(p->x);
    }
    cup_tensor *y = l->calls.stage(c, i, p->x, l->calls.user);
    CUP_TRY(check_made(l, y, i));
    p->y = cup_keep(y);
    return s->at == s->last ? cup__loop_note(l, y, i) : c->error.status;
}

static cup_status forward(cup_loop *l, int64_t k)
{
    cup__passage *p = passage_of(l, k);
    cup__tape *was = cup__tape_exchange(l->c, p->tape);
    cup__loop_draw(l, l->first + k);
    cup_scope_open(l->c);
    cup_status status = make(l, p, l->first + k);
    cup_scope_return(l->c, NULL);
    cup__tape_exchange(l->c, was);
    return status;
}

static cup_status go_back(cup_loop *l, cup__passage *p, cup_tensor *d, int64_t i)
{
    const cup__pipeline *s = l->pipeline;
    CUP_TRY(d ? cup_backward_from(l->c, &p->y, &d, 1) : cup_backward(l->c, p->y));
    if (s->at == 0)
        return CUP_OK;
    if (!p->x->grad)
        return cup__fail(&l->c->error, CUP_STATE,
                         "training: what stage %d makes of batch %lld does not depend on what the "
                         "stage before has made",
                         s->at, (long long)i);
    return send(l, p->x->grad, s->at - 1);
}

/* With the gradient of what was made, or from the loss. */
static cup_status backward(cup_loop *l, int64_t k, cup_tensor *d)
{
    cup__passage *p = passage_of(l, k);
    cup__tape *was = cup__tape_exchange(l->c, p->tape);
    cup_scope_open(l->c);
    cup_status status = go_back(l, p, d, l->first + k);
    cup_scope_return(l->c, NULL);
    passage_end(p);
    cup__tape_exchange(l->c, was);
    return status;
}

/* Batch k, with which this stage is `ahead`, on its way, and the one back that has been ahead
 * longest. One of them may be none: less than `from`, or no less than `to`. */
static cup_status turn(cup_loop *l, int64_t k, int64_t ahead, int64_t from, int64_t to)
{
    const cup__pipeline *s = l->pipeline;
    cup_tensor *d = NULL;
    int64_t back = k - ahead;
    cup_status status = k < to ? forward(l, k) : CUP_OK;
    cup_scope_open(l->c);
    if (status == CUP_OK && back >= from && s->at < s->last) {
        d = between_new(l);
        status = receive(l, d, s->at + 1);
    }
    if (status == CUP_OK && k < to && s->at < s->last)
        status = send(l, passage_of(l, k)->y, s->at + 1);
    if (status == CUP_OK && back >= from)
        status = backward(l, back, d);
    cup_scope_return(l->c, NULL);
    return status;
}

cup_status cup__pipeline_compute(cup_loop *l, int64_t from, int64_t to)
{
    cup__pipeline *s = l->pipeline;
    int64_t ahead = s->last - s->at;
    cup_status status = CUP_OK;
    if (!cup__device_is_dry(l->c->device))
        cup_comm_step(l->pipe, l->steps);
    for (int64_t k = from; k < to + ahead && status == CUP_OK; k++)
        status = turn(l, k, ahead, from, to);
    for (int64_t k = 0; k < s->depth && status != CUP_OK; k++) {
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
    for (int i = 0; i < o->count; i++)
        counted[i] = (o->divided && o->divided[i]) || cup_comm_rank(l->among) == 0;
    bool first = !(s->sharing & (((uint64_t)1 << s->at) - 1));
    for (int i = 0; i < s->shared_count && !first; i++)
        counted[s->shared[i]] = false;
    return cup__optimizer_count(o, l->model, counted);
}

static cup_status make_passages(cup_loop *l)
{
    cup__pipeline *s = l->pipeline;
    s->depth = s->last - s->at + 1;
    s->passages = cup__calloc((size_t)s->depth, sizeof *s->passages);
    s->shared = cup__calloc((size_t)l->optimizer->count + 1, sizeof *s->shared);
    if (!s->passages || !s->shared)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
    for (int64_t k = 0; k < s->depth; k++) {
        s->passages[k].tape = cup__tape_new(l->c, (int)k + 1);
        CUP_TRY(l->c->error.status);
    }
    return CUP_OK;
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
    CUP_TRY(make_passages(l));
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
    for (int64_t k = 0; s->passages && k < s->depth; k++)
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

cup_status cup__pipeline_spread(cup_loop *l)
{
    const cup__pipeline *s = l->pipeline;
    int64_t weights, states;
    if (!s || !s->sharers)
        return CUP_OK;
    const cup_named *weight = cup_parameters_named(l->list, &weights);
    const cup_named *state = cup_optimizer_state(l->optimizer, &states);
    CUP_TRY(l->c->error.status);
    cup_tensor **room = cup__calloc((size_t)(weights + states) + 1, sizeof *room);
    if (!room)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the stages of a model");
    int found = choose_shared(s, &s->weights, weight, weights, room);
    found += choose_shared(s, &s->states, state, states, room + found);
    cup_status status = cup_comm_broadcast(s->sharers, room, found, 0);
    cup__free(room);
    return status;
}
