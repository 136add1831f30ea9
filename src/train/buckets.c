/* Gradients are added up over all processes while backward still computes others, in the order in
 * which the first backward completes them. All keep to that order, whatever a later backward does:
 * so all processes add up the same at a time.
 *
 * Where a model, its experts or its texts are shared out, or parameters are elsewhere, backward has
 * operations with other processes of its own, and sums must stand in the same places among them on
 * all: who begins a sum before such an operation would wait for one who begins it behind, and that
 * one for the first. So there a backward is watched only where all have recorded the same, from
 * which follows when each gradient is complete; what happens to be seen elsewhere is copied and not
 * waited for. Where some have recorded something else all goes behind backward. */
#include "base/env.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "grad/watch.h"
#include "optim/loss_scale.h"
#include "train/together.h"

struct cup__buckets {
    cup_tensor **parameters; /* in their order */
    int *numbers;            /* of them in the optimizer */
    cup_comm **same;         /* by these: who has the same of it */
    cup_tensor **gradients;  /* of one bucket */
    int count, sent;         /* parameters whose gradients are on their way */
    int64_t bytes;           /* of a bucket */
    bool among; /* other operations go between processes meanwhile */
    bool open;  /* something may have to be joined */
    bool sorted;
    bool alike; /* all go through this backward in the same way */
    cup__grad_watch watch;
};

/* What goes between processes of a parameter's gradient. */
static int64_t bytes_of(const struct cup__buckets *b, int i)
{
    const cup_tensor *t = b->parameters[i];
    return cup_comm_count(b->same[b->numbers[i]]) > 1 ? t->count * cup_dtype_size(t->dtype) : 0;
}

static int bucket_end(const struct cup__buckets *b)
{
    int end = b->sent;
    for (int64_t bytes = 0; end < b->count && (end == b->sent || bytes < b->bytes); end++)
        bytes += bytes_of(b, end);
    return end;
}

static cup_status send_owned(cup_loop *l, const int *numbers, int count)
{
    l->buckets->open = true;
    return cup__split_sum_begin(l->optimizer, numbers, count);
}

/* Those of a bucket that `same` have, each a version. */
static cup_status send_same(cup_loop *l, int end, cup_comm *same)
{
    struct cup__buckets *b = l->buckets;
    int count = 0;
    for (int i = b->sent; i < end; i++)
        if (b->parameters[i]->grad && b->same[b->numbers[i]] == same)
            b->gradients[count++] = b->parameters[i]->grad;
    b->open = true;
    return count && cup_comm_count(same) > 1 ? cup__comm_sum_begin(same, b->gradients, count)
                                             : CUP_OK;
}

static cup_status send(cup_loop *l, int end)
{
    struct cup__buckets *b = l->buckets;
    cup__sharing all[CUP__SHARINGS];
    int count = cup__loop_sharings(l, all), first = b->sent;
    cup_status status = CUP_OK;
    if (cup__split_stage(l->optimizer) > 1) {
        b->sent = end;
        return send_owned(l, b->numbers + first, end - first);
    }
    for (int k = 0; k < count && status == CUP_OK; k++)
        status = send_same(l, end, all[k].same);
    b->sent = end;
    return status;
}

/* Whether something else sees a gradient's memory, as one on its way through another node: that
 * must find it as it was. */
static bool is_seen(const cup_tensor *gradient)
{
    return gradient && (gradient->refs > 1 || gradient->storage->refs > 1);
}

/* Whether the gradients up to `end` change no more when backward has passed a node. */
static bool complete(const struct cup__buckets *b, int end, uint32_t node)
{
    for (int i = b->sent; i < end; i++) {
        const cup_tensor *p = b->parameters[i];
        if ((p->first_use && p->first_use < node) || (!b->among && is_seen(p->grad)))
            return false;
    }
    return true;
}

/* Gives the gradients up to `end` memory of their own. */
static cup_status take_apart(cup_loop *l, int end)
{
    const struct cup__buckets *b = l->buckets;
    cup_scope_open(l->c);
    for (int i = b->sent; i < end && l->c->error.status == CUP_OK; i++) {
        cup_tensor *p = b->parameters[i], *own = is_seen(p->grad) ? cup_copy(l->c, p->grad) : NULL;
        if (!own)
            continue;
        cup__tensor_retain(own);
        cup__tensor_release(p->grad);
        p->grad = own;
    }
    cup_scope_return(l->c, NULL);
    return l->c->error.status;
}

/* Before all else what no call of this backward uses where other chunks of a stage did, else behind
 * all. */
static uint32_t use_of(const cup_loop *l, const cup_tensor *t)
{
    return l->pipe && !t->first_use ? UINT32_MAX : t->first_use;
}

/* What is used last comes first; equal ones as they were. */
static void sort_by_use(const cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    cup_tensor **list = b->parameters;
    for (int i = 1; i < b->count; i++) {
        cup_tensor *t = list[i];
        int at = i, number = b->numbers[i];
        for (; at > 0 && use_of(l, list[at - 1]) < use_of(l, t); at--) {
            list[at] = list[at - 1];
            b->numbers[at] = b->numbers[at - 1];
        }
        list[at] = t;
        b->numbers[at] = number;
    }
}

/* A number that is the same on processes which complete gradients in the same order; where other
 * operations go on meanwhile, on those that make the same calls with as many bytes. */
static uint64_t way_of(const cup_loop *l, int64_t *numbers)
{
    const struct cup__buckets *b = l->buckets;
    const cup_optimizer *o = l->optimizer;
    for (int i = 0; i < o->count; i++) {
        numbers[2 * i] = o->parameters[i]->first_use;
        numbers[2 * i + 1] = b->among ? o->parameters[i]->count : 0;
    }
    uint64_t uses = cup__hash_bytes(numbers, 2 * (size_t)o->count * sizeof *numbers);
    const uint64_t both[] = {uses, b->among ? cup__tape_hash(l->c) : 0};
    return cup__hash_bytes(both, sizeof both);
}

/* Finds the order. Where the processes do not compute the same, and nothing else goes between them,
 * that of the list is as good. */
static cup_status begins(void *user)
{
    cup_loop *l = user;
    struct cup__buckets *b = l->buckets;
    b->alike = b->sorted && !b->among;
    if (b->alike)
        return CUP_OK;
    int64_t *room = cup__calloc(2 * (size_t)l->optimizer->count, sizeof *room);
    if (!room)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a training run");
    int64_t own = (int64_t)(way_of(l, room) >> 1), numbers[] = {own, -own};
    cup__free(room);
    CUP_TRY(cup_comm_agree(l->peers, numbers, 2));
    bool same = numbers[0] == -numbers[1];
    if (same && !b->sorted)
        sort_by_use(l);
    b->alike = same || !b->among;
    b->sorted |= b->alike;
    return CUP_OK;
}

static cup_status passed(uint32_t node, void *user)
{
    cup_loop *l = user;
    struct cup__buckets *b = l->buckets;
    for (int end; b->alike && (end = bucket_end(b)) > b->sent && complete(b, end, node);) {
        if (b->among)
            CUP_TRY(take_apart(l, end));
        CUP_TRY(send(l, end));
    }
    return CUP_OK;
}

static cup_comm *same_of(const cup_loop *l, int number)
{
    const cup_optimizer *o = l->optimizer;
    cup__sharing all[CUP__SHARINGS];
    int i = cup__loop_sharings(l, all) - 1;
    while (i > 0 && all[i].sharers != (o->divided ? o->divided[number] : NULL))
        i--;
    return all[i].same;
}

static bool is_shared_by_stages(const cup_loop *l, int number)
{
    const cup__pipeline *s = l->pipeline;
    for (int i = 0; s && i < s->shared_count; i++)
        if (s->shared[i] == number)
            return true;
    return false;
}

/* What several stages have is added up over these before it goes to owners. */
static void list_parameters(cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    const cup_optimizer *o = l->optimizer;
    bool owned = cup__split_stage(o) > 1;
    for (int i = o->count - 1; i >= 0; i--) {
        b->same[i] = same_of(l, i);
        if (owned && is_shared_by_stages(l, i))
            continue;
        b->numbers[b->count] = i;
        b->parameters[b->count++] = o->parameters[i];
    }
}

cup_status cup__buckets_make(cup_loop *l)
{
    int64_t megabytes;
    CUP_TRY(cup__env_integer(&l->c->error, CUP__ENV_COMM_BUCKET, &megabytes));
    if (!l->comm || !megabytes)
        return CUP_OK;
    const cup_optimizer *o = l->optimizer;
    struct cup__buckets *b = l->buckets = cup__calloc(1, sizeof *b);
    if (b) {
        b->parameters = cup__calloc((size_t)o->count, sizeof *b->parameters);
        b->gradients = cup__calloc((size_t)o->count, sizeof *b->gradients);
        b->numbers = cup__calloc((size_t)o->count, sizeof *b->numbers);
        b->same = cup__calloc((size_t)o->count, sizeof(cup_comm *));
    }
    if (!b || !b->parameters || !b->gradients || !b->numbers || !b->same)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a training run");
    b->bytes = megabytes * 1000000;
    b->among = l->among || l->pipe || l->experts || l->ring > 1 ||
               cup__split_stage(o) > 2;
    list_parameters(l);
    b->watch = (cup__grad_watch){b->parameters, b->count, begins, passed, l};
    return CUP_OK;
}

void cup__buckets_free(cup_loop *l)
{
    if (!l->buckets)
        return;
    cup__free(l->buckets->parameters);
    cup__free(l->buckets->gradients);
    cup__free(l->buckets->numbers);
    cup__free(l->buckets->same);
    cup__free(l->buckets);
    l->buckets = NULL;
}

/* Behind a batch that others follow, where there are no buckets. */
static cup_status sum_batch(cup_loop *l)
{
    if (cup__device_is_dry(l->c->device))
        return CUP_OK;
    cup_comm_step(l->comm, l->steps);
    cup_status status = cup__split_sum_all(l->optimizer);
    cup__split_summed(l->optimizer, false);
    return status;
}

/* From the loss, or where it has a scale from what that makes of it. */
static cup_status backward(cup_loop *l, cup_tensor *loss)
{
    cup_tensor *slope = cup__loss_scale_slope(l->optimizer, loss);
    CUP_TRY(l->c->error.status);
    return cup__backward(l->c, loss, slope);
}

void cup__buckets_watch(cup_loop *l, bool on)
{
    if (!l->buckets || cup__device_is_dry(l->c->device))
        return;
    if (on)
        cup_comm_step(l->comm, l->steps);
    cup__grad_watch_set(l->c, on ? &l->buckets->watch : NULL);
}

cup_status cup__loop_backward(cup_loop *l, cup_tensor *loss, bool last)
{
    /* What goes to owners does so behind each batch, so that nobody keeps gradients of all. */
    bool owned = cup__split_stage(l->optimizer) > 1;
    bool watched = (last || owned) && l->buckets && !cup__device_is_dry(l->c->device);
    if (!watched) {
        CUP_TRY(backward(l, loss));
        return owned && !last && !l->buckets ? sum_batch(l) : CUP_OK;
    }
    cup__buckets_watch(l, true);
    cup_status status = backward(l, loss);
    cup__buckets_watch(l, false);
    return status == CUP_OK && owned && !last ? cup__buckets_finish(l) : status;
}

static cup_status end_sums(cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    b->open = b->alike = false;
    b->sent = 0;
    return cup__split_stage(l->optimizer) > 1 ? cup__split_sum_end(l->optimizer)
                                              : cup__comm_join(l->comm);
}

cup_status cup__buckets_finish(cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    const cup__pipeline *s = l->pipeline;
    while (b->sent < b->count)
        CUP_TRY(send(l, b->alike ? bucket_end(b) : b->count));
    CUP_TRY(end_sums(l));
    CUP_TRY(cup__pipeline_reduce(l));
    if (!s || !s->shared_count || cup__split_stage(l->optimizer) < 2)
        return CUP_OK;
    CUP_TRY(send_owned(l, s->shared, s->shared_count));
    return end_sums(l);
}

void cup__buckets_drop(cup_loop *l)
{
    if (l->buckets && l->buckets->open)
        end_sums(l);
    if (l->buckets)
        l->buckets->sent = 0;
}
