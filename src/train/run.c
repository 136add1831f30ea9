/* The loop of a run. */
#include <math.h>

#include "tensor/context.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static cup_status evaluate(cup_trainer *t, const cup_training_hooks *hooks)
{
    const cup_training *a = &t->training;
    CUP_TRY(cup__trainer_read(t, hooks));
    double loss;
    CUP_TRY(
        cup_gpt_evaluate(t->model, t->data, CUP_VALIDATION, a->batch, a->evaluate_texts, &loss));
    cup_training_point *point = cup__trainer_point(t, t->steps);
    if (!point)
        return t->c->error.status;
    point->validation = loss;
    if (hooks && hooks->point)
        hooks->point(point, hooks->user);
    return CUP_OK;
}

static cup_status save(cup_trainer *t, const cup_training_hooks *hooks)
{
    CUP_TRY(cup__trainer_read(t, hooks));
    if (!t->folder || t->saved == t->point_count)
        return CUP_OK;
    bool (*stop)(void *) = t->c->stop;
    t->c->stop = NULL;
    cup_status status = cup_trainer_save(t);
    t->c->stop = stop;
    if (status != CUP_OK)
        return status;
    if (hooks && hooks->saved)
        hooks->saved(t->steps, hooks->user);
    return CUP_OK;
}

/* Whether the evaluation before the next step is among the points of the checkpoint. */
static bool is_evaluated(const cup_trainer *t)
{
    if (t->point_count == 0)
        return false;
    const cup_training_point *last = &t->points[t->point_count - 1];
    return last->step == t->steps && isfinite(last->validation);
}

static cup_status run_steps(cup_trainer *t, const cup_training_hooks *hooks)
{
    const cup_training *a = &t->training;
    while (t->steps < a->steps) {
        if ((t->steps == 0 || is_due(t->steps, a->evaluate_every)) && !is_evaluated(t))
            CUP_TRY(evaluate(t, hooks));
        CUP_TRY(cup__trainer_step(t));
        if (cup__trainer_should_read(t))
            CUP_TRY(cup__trainer_read(t, hooks));
        CUP_TRY(cup__stopped(t->c));
        if (is_due(t->steps, a->save_every) && t->steps < a->steps)
            CUP_TRY(save(t, hooks));
    }
    CUP_TRY(cup__trainer_read(t, hooks));
    if (is_evaluated(t))
        return CUP_OK;
    CUP_TRY(evaluate(t, hooks));
    return save(t, hooks);
}

cup_status cup_trainer_run(cup_trainer *t, const cup_training_hooks *hooks)
{
    if (!t)
        return CUP_ARGUMENT;
    if (t->c->error.status != CUP_OK)
        return t->c->error.status;
    CUP_TRY(cup__trainer_own(t));
    cup__trainer_prepare(t);
    t->c->stop = hooks ? hooks->stop : NULL;
    t->c->stop_user = hooks ? hooks->user : NULL;
    cup_status status = run_steps(t, hooks);
    t->c->stop = NULL;
    if (status != CUP_INTERRUPTED)
        return status;
    cup_error_clear(t->c);
    CUP_TRY(save(t, hooks));
    return CUP_INTERRUPTED;
}
