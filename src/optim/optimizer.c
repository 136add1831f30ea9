/* The optimizer as users see it: the calls of one step, and what can be asked of it. */
#include <math.h>

#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/guard.h"
#include "optim/loss_scale.h"
#include "optim/split.h"
#include "optim/update.h"

cup_status cup_optimizer_set(cup_optimizer *o, double rate, double scale)
{
    if (!o)
        return CUP_ARGUMENT;
    if (o->c->error.status != CUP_OK)
        return o->c->error.status;
    if (!(rate >= 0 && rate < INFINITY) || !(scale > 0 && scale < INFINITY))
        return cup__fail(&o->c->error, CUP_ARGUMENT,
                         "optimizer: a learning rate of %g and a gradient scale of %g make no "
                         "step; both must be finite, the scale positive",
                         rate, scale);
    const float hyper[] = {(float)rate, (float)o->options.clip, (float)scale};
    o->ready = true;
    return cup_tensor_write(o->hyper, hyper, sizeof hyper);
}

/* Gathers the gradients; returns how many there are. */
static int gather(cup_optimizer *o)
{
    int count = 0;
    for (int i = 0; i < o->count; i++) {
        cup_tensor *gradient = cup_grad(o->parameters[i]);
        if (gradient)
            o->gradients[count++] = gradient;
    }
    for (int i = 0; i < o->plain; i++) {
        cup_tensor **r = o->inputs + CUP__RECORDS_AT + i * CUP__RECORD;
        r[CUP__GRADIENT] = cup_grad(r[CUP__VALUE]);
    }
    return count;
}

cup_tensor *const *cup__optimizer_gradients(cup_optimizer *o, int *count)
{
    *count = gather(o);
    return o->gradients;
}

/* A parameter that was freed is still there, because the optimizer holds it, but in no scope. */
static cup_status check_step(const cup_optimizer *o)
{
    char text[CUP__SHAPE_TEXT];
    if (!o->ready)
        return cup__fail(&o->c->error, CUP_STATE,
                         "optimizer: no learning rate was set; call cup_optimizer_set before the "
                         "first step");
    if (o->shown)
        return cup__fail(&o->c->error, CUP_STATE,
                         "optimizer: the averages are shown in place of the parameters; put these "
                         "back with cup_optimizer_show_average before a step");
    for (int i = 0; i < o->count; i++)
        if (o->parameters[i]->scope == CUP__SCOPE_NONE)
            return cup__fail(&o->c->error, CUP_STATE,
                             "optimizer: parameter %d, %s, was freed, by itself or with its scope; "
                             "cup_keep takes a tensor out of its scope",
                             i, cup__tensor_text(o->parameters[i], text));
    return CUP_OK;
}

static cup_status run_update(cup_optimizer *o)
{
    int count = CUP__RECORDS_AT + o->plain * CUP__RECORD;
    if (o->muon)
        CUP_TRY(cup__muon_step_all(o->muon, o->inputs[0], o->options.momentum,
                                   o->options.stochastic));
    if (o->plain > 0)
        cup__op_call(o->c, o->others, o->inputs, count, &o->others_attributes, NULL);
    const cup__average_step_attributes average = {o->options.average};
    if (o->averages && cup__optimizer_own(o) > 0)
        cup__op_call(o->c, &cup__rows[CUP__OP_average_step], o->averages,
                     CUP__RECORDS_AT + cup__optimizer_own(o) * CUP__RECORD, &average, NULL);
    return o->c->error.status == CUP_OK ? cup__split_share(o) : o->c->error.status;
}

static cup_status step(cup_optimizer *o)
{
    bool owned = cup__split_stage(o) > 1;
    if (owned)
        CUP_TRY(cup__split_sum_all(o));
    int count = gather(o);
    if (count == 0 && !owned)
        return cup__fail(&o->c->error, CUP_STATE,
                         "optimizer: no parameter has a gradient; call cup_backward first");
    /* Into tensors of the optimizer's own, so that nothing is allocated and a captured step finds
     * them again. */
    const cup__step_factors_attributes betas = {
        cup__method_number(o->others, &o->others_attributes, "beta1"),
        cup__method_number(o->others, &o->others_attributes, "beta2")};
    cup_tensor *const in[] = {o->hyper, o->steps, o->norm};
    if ((owned ? cup__split_norm(o, count) : cup__divided_norm(o, count)) != CUP_OK ||
        cup__loss_scale_norm(o) != CUP_OK || cup__guard_norm(o) != CUP_OK ||
        !cup__op_call(o->c, &cup__rows[CUP__OP_step_factors], in, 3, &betas, &o->inputs[0]) ||
        cup__loss_scale_factors(o) != CUP_OK)
        return o->c->error.status;
    return run_update(o);
}

cup_status cup_optimizer_step(cup_optimizer *o)
{
    if (!o)
        return CUP_ARGUMENT;
    if (o->c->error.status != CUP_OK)
        return o->c->error.status;
    CUP_TRY(check_step(o));
    cup__split_pause(o, true);
    cup_status status = step(o);
    cup__split_pause(o, false);
    return status;
}

void cup_optimizer_clear(cup_optimizer *o)
{
    for (int i = 0; o && i < o->count; i++)
        cup_grad_clear(o->parameters[i]);
}

cup_tensor *cup_optimizer_norm(const cup_optimizer *o)
{
    return o ? o->norm : NULL;
}

static int64_t read_steps(cup_optimizer *o, int which)
{
    double steps[4];
    if (!o || cup_tensor_read(o->steps, steps, sizeof steps) != CUP_OK)
        return -1;
    return (int64_t)steps[which];
}

int64_t cup_optimizer_taken(cup_optimizer *o)
{
    return read_steps(o, 0);
}

int64_t cup_optimizer_skipped(cup_optimizer *o)
{
    return read_steps(o, 3);
}

const cup_named *cup_optimizer_state(const cup_optimizer *o, int64_t *count)
{
    if (count)
        *count = o ? o->state_count : 0;
    return o ? o->state : NULL;
}
