/* The loop of a run. */
#include <math.h>

#include "cupola/grad.h"
#include "base/options.h"
#include "tensor/context.h"
#include "tensor/tensor.h"
#include "train/saving.h"
#include "train/together.h"

/* On a GPU comparing 124 million weights takes about as long as five steps of them. */
#define CHECK_EVERY 1000

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static cup_status ask(cup_loop *l, double *loss)
{
    cup_context *c = l->c;
    bool recorded = cup_grad_recording(c, false);
    bool trained = cup_parameters_training(l->list, false);
    cup__callback callback;
    cup_scope_open(c);
    cup__callback_begin(c, &callback);
    cup_status status = l->calls.evaluate(c, loss, l->calls.user);
    cup__loop_called(l, &callback);
    cup_scope_return(c, NULL);
    cup_parameters_training(l->list, trained);
    cup_grad_recording(c, recorded);
    CUP_TRY(c->error.status);
    if (status != CUP_OK)
        return cup__fail(&c->error, status, "training: the evaluation behind %lld steps failed",
                         (long long)l->steps);
    if (isfinite(*loss))
        return CUP_OK;
    return cup__fail(&c->error, CUP_STATE,
                     "training: the loss of the evaluation behind %lld steps is not a number; "
                     "lower the learning rate, and start again or from the last checkpoint",
                     (long long)l->steps);
}

static cup_status evaluate(cup_loop *l, const cup_training_hooks *hooks)
{
    double loss = NAN;
    CUP_TRY(cup__loop_read(l, hooks));
    CUP_TRY(ask(l, &loss));
    cup_training_point *point = cup__loop_point(l, l->steps);
    if (!point)
        return l->c->error.status;
    point->validation = loss;
    if (hooks->point)
        hooks->point(point, hooks->user);
    return CUP_OK;
}

/* The steps that follow go on meanwhile where the options say so and there are some. */
static cup_status save(cup_loop *l, const cup_training_hooks *hooks, bool goes_on)
{
    CUP_TRY(cup__loop_read(l, hooks));
    if (!l->options.folder)
        return CUP_OK;
    bool (*stop)(void *) = l->c->stop;
    bool behind = goes_on && l->options.background;
    l->c->stop = NULL;
    cup_status status = cup__save_finish(l);
    if (status == CUP_OK && l->saved != l->point_count)
        status = cup__save_begin(l, behind);
    if (status == CUP_OK && !behind)
        status = cup__save_finish(l);
    l->c->stop = stop;
    return status;
}

/* Whether nothing is left to evaluate before the next step: nothing ever is, or it is among the
 * points of the checkpoint. */
static bool is_evaluated(const cup_loop *l)
{
    if (!l->calls.evaluate)
        return true;
    if (l->point_count == 0)
        return false;
    const cup_training_point *last = &l->points[l->point_count - 1];
    return last->step == l->steps && isfinite(last->validation);
}

static cup_status run_steps(cup_loop *l, const cup_training_hooks *hooks)
{
    const cup_loop_options *a = &l->options;
    while (l->steps < a->schedule.steps) {
        if ((l->steps == 0 || is_due(l->steps, a->evaluate_every)) && !is_evaluated(l))
            CUP_TRY(evaluate(l, hooks));
        CUP_TRY(cup__loop_step(l));
        if (cup__loop_should_read(l))
            CUP_TRY(cup__loop_read(l, hooks));
        CUP_TRY(cup__loop_agree(l));
        if (is_due(l->steps, a->check_every ? a->check_every : CHECK_EVERY))
            CUP_TRY(cup__loop_compare(l));
        if (is_due(l->steps, a->save_every) && l->steps < a->schedule.steps)
            CUP_TRY(save(l, hooks, true));
    }
    CUP_TRY(cup__loop_read(l, hooks));
    if (!is_evaluated(l))
        CUP_TRY(evaluate(l, hooks));
    return save(l, hooks, false);
}

static cup_status run(cup_loop *l, const cup_training_hooks *hooks)
{
    CUP_TRY(cup__loop_own(l));
    CUP_TRY(cup__loop_prepare(l));
    CUP_TRY(cup__loop_spread(l));
    bool (*stop)(void *) = l->c->stop;
    void *stop_user = l->c->stop_user;
    if (hooks->stop)
        cup_stop_when(l->c, hooks->stop, hooks->user);
    if (l->comm) {
        l->asked = l->c->stop;
        l->asked_user = l->c->stop_user;
        cup_stop_when(l->c, NULL, NULL);
    }
    l->hooks = hooks;
    cup_status status = run_steps(l, hooks);
    cup_stop_when(l->c, stop, stop_user);
    if (status == CUP_INTERRUPTED) {
        cup_error_clear(l->c);
        status = save(l, hooks, false);
        status = status == CUP_OK ? CUP_INTERRUPTED : status;
    }
    l->hooks = NULL;
    return status;
}

cup_status cup_loop_run(cup_loop *l, const cup_training_hooks *from)
{
    cup_training_hooks hooks;
    if (!l)
        return CUP_ARGUMENT;
    if (l->c->error.status != CUP_OK)
        return l->c->error.status;
    CUP_TRY(cup__options_take(&l->c->error, "training: its hooks", &hooks, sizeof hooks, from));
    if (l->running)
        return cup__fail(&l->c->error, CUP_STATE,
                         "training: the run goes on; none of its calls and hooks can run it again");
    l->running = true;
    cup_status status = run(l, &hooks);
    l->running = false;
    return status;
}
