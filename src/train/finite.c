/* Steps whose loss or gradients are not finite: that nothing is left of them, and which op was the
 * first to give such a value. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/finite.h"
#include "nn/parameters.h"
#include "optim/guard.h"
#include "optim/loss_scale.h"
#include "tensor/tensor.h"
#include "train/together.h"

const char *const cup__non_finite_words[] = {"usual", "stop", "skip", NULL};

/* What forward changes of the list by itself, as the statistics of batches, is put back behind a
 * step that is skipped. */
struct cup__buffers {
    cup_tensor **now, **before;
    int64_t count;
};

static cup_status make_buffers(cup_loop *l)
{
    int64_t all;
    cup_context *c = l->c;
    const cup_named *named = cup_parameters_named(l->list, &all);
    CUP_TRY(c->error.status);
    struct cup__buffers *b = l->buffers = cup__calloc(1, sizeof *b);
    if (b) {
        b->now = cup__calloc((size_t)all + 1, sizeof *b->now);
        b->before = cup__calloc((size_t)all + 1, sizeof *b->before);
    }
    if (!b || !b->now || !b->before)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a training run");
    for (int64_t i = 0; i < all && c->error.status == CUP_OK; i++) {
        if (named[i].tensor->is_parameter)
            continue;
        cup__shape shape = cup__shape_of(named[i].tensor);
        b->now[b->count] = named[i].tensor;
        b->before[b->count++] = cup_keep(cup__full(c, &shape, 0));
    }
    return c->error.status;
}

cup_status cup__loop_guard(cup_loop *l)
{
    cup_non_finite how = l->options.non_finite;
    if (how == CUP_NON_FINITE_USUAL)
        return CUP_OK;
    if (how == CUP_NON_FINITE_SKIP &&
        cup_parameters_count(l->list, false) != cup_parameters_count(l->list, true))
        CUP_TRY(make_buffers(l));
    return cup__optimizer_guard(l->optimizer, l->losses, how == CUP_NON_FINITE_STOP);
}

void cup__loop_guard_free(cup_loop *l)
{
    struct cup__buffers *b = l->buffers;
    if (!b)
        return;
    for (int64_t i = 0; b->before && i < b->count; i++)
        cup_tensor_free(b->before[i]);
    cup__free(b->now);
    cup__free(b->before);
    cup__free(b);
    l->buffers = NULL;
}

static cup_status copy(cup_tensor *to, const cup_tensor *from)
{
    cup__device *device = to->context->device;
    size_t bytes = (size_t)(to->count * cup_dtype_size(to->dtype));
    return from ? device->calls->copy(device, to->data, from->data, bytes)
                : to->context->error.status;
}

cup_status cup__loop_buffers_keep(cup_loop *l)
{
    const struct cup__buffers *b = l->buffers;
    for (int64_t i = 0; b && i < b->count; i++)
        CUP_TRY(copy(b->before[i], b->now[i]));
    return CUP_OK;
}

static cup_status put_back(cup_loop *l)
{
    const struct cup__buffers *b = l->buffers;
    cup_tensor *number = cup__optimizer_went(l->optimizer);
    cup_tensor *went = cup_cast(l->c, number, CUP_BOOL);
    cup_status status = went ? CUP_OK : l->c->error.status;
    for (int64_t i = 0; i < b->count && status == CUP_OK; i++)
        status = copy(b->now[i], cup_where(l->c, went, b->now[i], b->before[i]));
    cup_tensor_free(number);
    return status;
}

cup_status cup__loop_buffers_settle(cup_loop *l)
{
    if (!l->buffers)
        return CUP_OK;
    bool was = cup_grad_recording(l->c, false);
    cup_status status = put_back(l);
    cup_grad_recording(l->c, was);
    return status;
}

static const char *name_of(const cup_tensor *t, void *user)
{
    const cup_loop *l = user;
    return cup__parameters_name(l->list, t);
}

/* Whether weights and states are those that the step that is read next began with, as no step from
 * there on was made. */
static bool are_unmoved(const cup_loop *l)
{
    int64_t losses = l->options.accumulate;
    for (int64_t i = l->read; i < l->steps; i++)
        if (isfinite(l->host_pending[i % CUP__PENDING_MOST * cup__loop_row(l) + losses]))
            return false;
    return true;
}

static void compute_again(cup_loop *l)
{
    cup_scope_open(l->c);
    if (cup__loop_set_step(l) == CUP_OK && cup__loop_gradients(l, 0, l->share) != CUP_OK)
        cup__buckets_drop(l);
    cup__split_let_go(l->optimizer);
    cup_scope_return(l->c, NULL);
    cup__loop_clear(l);
}

/* The step that is read next, computed once more by calls that are looked at, where it can be. */
static bool find(cup_loop *l, cup__finite *f)
{
    int64_t steps = l->steps;
    bool (*stop)(void *) = l->c->stop;
    if (!are_unmoved(l))
        return false;
    cup__loop_free_graphs(l);
    l->replay = CUP__REPLAY_OFF;
    l->steps = l->read;
    l->c->stop = NULL;
    l->c->finite = f;
    compute_again(l);
    bool whole = l->c->error.status == CUP_OK;
    l->c->finite = NULL;
    cup_error_clear(l->c);
    l->c->stop = stop;
    l->steps = steps;
    return whole;
}

static cup_status stop(cup_loop *l, const char *what, const char *advice)
{
    cup__finite f = {.name = name_of, .user = l, .pass = "forward"};
    char found[2 * CUP__FINITE_TEXT + 200] = "";
    bool whole = find(l, &f), later = strcmp(f.first, f.nan) != 0 && *f.nan;
    if (*f.first)
        snprintf(found, sizeof found,
                 "; computed again, the first value that is not finite is %s%s%s", f.first,
                 later ? "; the first NaN is " : "", later ? f.nan : "");
    else if (whole && l->comm)
        snprintf(found, sizeof found, "; computed again, all that this process makes is finite, so "
                                      "that another one says what is not");
    return cup__fail(&l->c->error, CUP_STATE, "training: the %s of step %lld %s%s; %s", what,
                     (long long)l->read,
                     *what == 'l' ? "is not a number, so the run has come apart"
                                  : "are not finite",
                     found, advice);
}

cup_status cup__loop_judge(cup_loop *l, double loss, double norm)
{
    cup_non_finite how = l->options.non_finite;
    if (!isfinite(loss) && how != CUP_NON_FINITE_SKIP)
        return stop(l, "loss",
                    "lower the learning rate or lengthen the warm-up, and start again or from the "
                    "last checkpoint");
    /* Of a loss that has a scale they may be too large for the dtype only with it. */
    bool least = !l->optimizer->scale || l->loss_scale <= CUP__LOSS_SCALE_LEAST;
    if (!isfinite(norm) && how == CUP_NON_FINITE_STOP && least)
        return stop(l, "gradients",
                    "lower the learning rate, or let such steps be skipped, and start again or "
                    "from the last checkpoint");
    l->skipped += !isfinite(norm);
    return CUP_OK;
}

int64_t cup_loop_skipped(const cup_loop *l)
{
    return l ? l->skipped : 0;
}
