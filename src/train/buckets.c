/* Gradients are added up over all processes while backward still computes others, in the order in
 * which the first backward completes them. All keep to that order, whatever a later backward does:
 * so all processes add up the same at a time. */
#include "base/env.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "grad/watch.h"
#include "optim/loss_scale.h"
#include "train/together.h"

struct cup__buckets {
    cup_tensor **parameters; /* in their order */
    int *numbers;            /* of them in the optimizer */
    cup_tensor **gradients;  /* of one bucket */
    int count, sent;         /* parameters whose gradients are on their way */
    int64_t bytes;           /* of a bucket */
    bool open;               /* something may have to be joined */
    bool sorted;
    cup__grad_watch watch;
};

static int64_t bytes_of(const cup_tensor *t)
{
    return t->count * cup_dtype_size(t->dtype);
}

static int bucket_end(const struct cup__buckets *b)
{
    int end = b->sent;
    for (int64_t bytes = 0; end < b->count && (!bytes || bytes < b->bytes); end++)
        bytes += bytes_of(b->parameters[end]);
    return end;
}

static cup_status send(cup_loop *l, int end)
{
    struct cup__buckets *b = l->buckets;
    int count = 0, first = b->sent;
    if (cup__split_stage(l->optimizer) > 1) {
        b->open = true;
        b->sent = end;
        return cup__split_sum_begin(l->optimizer, b->numbers + first, end - first);
    }
    for (; b->sent < end; b->sent++)
        if (b->parameters[b->sent]->grad)
            b->gradients[count++] = b->parameters[b->sent]->grad;
    b->open = true;
    return count ? cup__comm_sum_begin(l->comm, b->gradients, count) : CUP_OK;
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
        if ((p->first_use && p->first_use < node) || is_seen(p->grad))
            return false;
    }
    return true;
}

/* What is used last comes first, what is not used at all last; equal ones as they were. */
static void sort_by_use(struct cup__buckets *b)
{
    cup_tensor **list = b->parameters;
    for (int i = 1; i < b->count; i++) {
        cup_tensor *t = list[i];
        int at = i, number = b->numbers[i];
        for (; at > 0 && list[at - 1]->first_use < t->first_use; at--) {
            list[at] = list[at - 1];
            b->numbers[at] = b->numbers[at - 1];
        }
        list[at] = t;
        b->numbers[at] = number;
    }
}

/* Finds the order. Where the processes do not compute the same, that of the list is as good. */
static cup_status sort(cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    const cup_optimizer *o = l->optimizer;
    size_t count = (size_t)b->count;
    uint32_t *uses = cup__calloc(count, sizeof *uses);
    if (!uses)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a training run");
    for (size_t i = 0; i < count; i++)
        uses[i] = o->parameters[i]->first_use;
    int64_t own = (int64_t)(cup__hash_bytes(uses, count * sizeof *uses) >> 1);
    int64_t numbers[] = {own, -own};
    cup__free(uses);
    CUP_TRY(cup_comm_agree(l->comm, numbers, 2));
    if (numbers[0] == -numbers[1])
        sort_by_use(b);
    b->sorted = true;
    return CUP_OK;
}

static cup_status passed(uint32_t node, void *user)
{
    cup_loop *l = user;
    struct cup__buckets *b = l->buckets;
    if (!b->sorted)
        CUP_TRY(sort(l));
    for (int end; (end = bucket_end(b)) > b->sent && complete(b, end, node);)
        CUP_TRY(send(l, end));
    return CUP_OK;
}

cup_status cup__buckets_make(cup_loop *l)
{
    int64_t megabytes;
    CUP_TRY(cup__env_integer(&l->c->error, CUP__ENV_COMM_BUCKET, &megabytes));
    /* What is shared out has sums over others beside, in another order. */
    if (!l->comm || l->among || l->pipe || l->experts || !megabytes)
        return CUP_OK;
    const cup_optimizer *o = l->optimizer;
    struct cup__buckets *b = l->buckets = cup__calloc(1, sizeof *b);
    if (b) {
        b->parameters = cup__calloc((size_t)o->count, sizeof *b->parameters);
        b->gradients = cup__calloc((size_t)o->count, sizeof *b->gradients);
        b->numbers = cup__calloc((size_t)o->count, sizeof *b->numbers);
    }
    if (!b || !b->parameters || !b->gradients || !b->numbers)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a training run");
    b->bytes = megabytes * 1000000;
    b->count = o->count;
    for (int i = 0; i < b->count; i++) {
        b->numbers[i] = b->count - 1 - i;
        b->parameters[i] = o->parameters[b->numbers[i]];
    }
    b->watch = (cup__grad_watch){b->parameters, b->count, passed, l};
    return CUP_OK;
}

void cup__buckets_free(cup_loop *l)
{
    if (!l->buckets)
        return;
    cup__free(l->buckets->parameters);
    cup__free(l->buckets->gradients);
    cup__free(l->buckets->numbers);
    cup__free(l->buckets);
    l->buckets = NULL;
}

/* Behind a batch that others follow, where parts are shared out and so without buckets. */
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

cup_status cup__loop_backward(cup_loop *l, cup_tensor *loss, bool last)
{
    /* What goes to owners does so behind each batch, so that nobody keeps gradients of all. */
    bool owned = cup__split_stage(l->optimizer) > 1;
    bool watched = (last || owned) && l->buckets && !cup__device_is_dry(l->c->device);
    if (!watched) {
        CUP_TRY(backward(l, loss));
        return owned && !last && (l->among || l->experts) ? sum_batch(l) : CUP_OK;
    }
    l->buckets->sent = 0;
    cup_comm_step(l->comm, l->steps);
    cup__grad_watch_set(l->c, &l->buckets->watch);
    cup_status status = backward(l, loss);
    cup__grad_watch_set(l->c, NULL);
    return status == CUP_OK && owned && !last ? cup__buckets_finish(l) : status;
}

static cup_status end_sums(cup_loop *l)
{
    l->buckets->open = false;
    return cup__split_stage(l->optimizer) > 1 ? cup__split_sum_end(l->optimizer)
                                              : cup__comm_join(l->comm);
}

cup_status cup__buckets_finish(cup_loop *l)
{
    struct cup__buckets *b = l->buckets;
    while (b->sent < b->count)
        CUP_TRY(send(l, bucket_end(b)));
    return end_sums(l);
}

void cup__buckets_drop(cup_loop *l)
{
    if (l->buckets && l->buckets->open)
        end_sums(l);
}
