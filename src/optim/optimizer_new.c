/* Making an optimizer: the states of many parameters, and the records by which a step finds
 * them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "optim/average.h"
#include "optim/groups.h"
#include "optim/guard.h"
#include "optim/loss_scale.h"
#include "optim/split.h"
#include "optim/update.h"
#include "tensor/debug.h"

#define COMMON_MOST 2 /* states of no parameter: steps and the scale of the loss */

static cup_status check_parameter(cup_context *c, const cup_parameter *p, int i)
{
    char text[CUP__SHAPE_TEXT];
    if (!p->tensor || !p->name)
        return cup__fail(&c->error, CUP_ARGUMENT, "optimizer: parameter %d has no %s", i,
                         p->tensor ? "name" : "tensor");
    if (p->tensor->context == c && !cup__usable(p->tensor, true, "optimizer"))
        return c->error.status;
    if (p->tensor->context != c || !p->tensor->contiguous)
        return cup__fail(&c->error, CUP_ARGUMENT, "optimizer: parameter %s, %s, %s", p->name,
                         cup__tensor_text(p->tensor, text),
                         p->tensor->context != c ? "belongs to another context"
                                                 : "must be in row-major order");
    if (cup__tensor_read_only(p->tensor))
        return cup__fail(&c->error, CUP_STATE,
                         "optimizer: the memory of parameter %s, %s, was wrapped as read-only; "
                         "train a copy of it",
                         p->name, cup__tensor_text(p->tensor, text));
    if (!(p->rate >= 0 && p->rate < INFINITY))
        return cup__fail(&c->error, CUP_ARGUMENT, "optimizer: the rate of %s must be at least 0",
                         p->name);
    return cup_require_grad(p->tensor) ? CUP_OK : c->error.status;
}

/* Two entries that share memory would both step it. */
static cup_status check_single(cup_context *c, const cup_parameter *parameters, int i)
{
    const cup_tensor *t = parameters[i].tensor;
    for (int j = 0; j < i; j++)
        if (parameters[j].tensor == t || cup__tensor_overlap(parameters[j].tensor, t))
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "optimizer: parameters %d (%s) and %d (%s) are %s; name each once", j,
                             parameters[j].name, i, parameters[i].name,
                             parameters[j].tensor == t ? "one tensor" : "views of one memory");
    return CUP_OK;
}

cup_tensor *cup__optimizer_state_add(cup_optimizer *o, const char *name, const char *part,
                                     cup_tensor *t)
{
    size_t size = strlen(name) + strlen(part) + 2;
    char *full = cup__malloc(size);
    if (!t || !full) {
        if (t)
            cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
        cup__free(full);
        return NULL;
    }
    snprintf(full, size, *part ? "%s.%s" : "%s%s", name, part);
    o->state[o->state_count++] = (cup_named){full, cup_keep(t)};
    return cup__split_note(o, full, t, NULL) == CUP_OK ? t : NULL;
}

/* A copy of a parameter, which the steps change in its place. */
static cup_tensor *add_master(cup_optimizer *o, const cup_parameter *p)
{
    const cup__cast_attributes to = {CUP_F32};
    cup_tensor *value = p->tensor, *master = NULL;
    cup__shape shape = cup__shape_of(value);
    shape.dtype = CUP_F32;
    if ((master = cup__optimizer_room(o, &shape)))
        cup__op_call(o->c, &cup__rows[CUP__OP_cast], &value, 1, &to, &master);
    return cup__optimizer_state_add(o, p->name, "master",
                                    o->c->error.status == CUP_OK ? master : NULL);
}

/* A state of the parameter's shape, full of zeros. */
static cup_tensor *add_zeros(cup_optimizer *o, const cup_parameter *p, const char *part)
{
    cup__shape shape = cup__shape_of(p->tensor);
    shape.dtype = shape.dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    return cup__optimizer_state_add(o, p->name, part, cup__optimizer_room(o, &shape));
}

/* Whether the parameter goes by a method for hidden matrices alone. */
static bool is_matrix(const cup_optimizer *o, const cup_parameter *p)
{
    return o->row != o->others && p->hidden && p->tensor->ndim == 2;
}

/* The row by whose rule the parameter goes. */
static const cup__row *row_of(const cup_optimizer *o, const cup_parameter *p)
{
    return is_matrix(o, p) ? o->row : o->others;
}

static cup_tensor *add_state(cup_optimizer *o, const cup_parameter *p, const char *part)
{
    const cup__shape own = cup__shape_of(p->tensor);
    const cup__shape shape = cup__update_state_shape(row_of(o, p), &own);
    return cup__optimizer_state_add(o, p->name, part, cup__optimizer_room(o, &shape));
}

/* The record of an average, of what the steps change. */
static cup_status add_average(cup_optimizer *o, const cup_parameter *p, cup_tensor *master)
{
    cup_tensor **r = o->averages + CUP__RECORDS_AT + cup__optimizer_own(o) * CUP__RECORD;
    if (p->tensor->dtype == CUP_BF16 && !master)
        return cup__fail(&o->c->error, CUP_ARGUMENT,
                         "optimizer: no average is kept of %s, which is bf16 without a master "
                         "copy; leave `stochastic` or `average` out",
                         p->name);
    r[CUP__VALUE] = add_zeros(o, p, CUP__AVERAGE_PART);
    r[CUP__GRADIENT] = master ? master : p->tensor;
    return o->c->error.status;
}

/* The states of a parameter that another process keeps, for which there is no memory here. */
static cup_status add_elsewhere(cup_optimizer *o, const cup_parameter *p)
{
    static const char *const parts[] = {"master", "first", "second", CUP__AVERAGE_PART};
    cup_dtype dtype = p->tensor->dtype;
    cup__shape shape = cup__shape_of(p->tensor);
    char name[512];
    int states = is_matrix(o, p) ? cup__update_states(o->row, &o->attributes)
                                 : cup__update_states(o->others, &o->others_attributes);
    bool master = dtype == CUP_F16 || (dtype == CUP_BF16 && !o->options.stochastic);
    const cup__shape state = cup__update_state_shape(row_of(o, p), &shape);
    shape.dtype = dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    for (int i = 0; i < 4; i++) {
        bool kept = i == 0 ? master : i == 3 ? o->averages != NULL : i <= states;
        if (!kept)
            continue;
        if (snprintf(name, sizeof name, "%s.%s", p->name, parts[i]) >= (int)sizeof name)
            return cup__fail(&o->c->error, CUP_ARGUMENT,
                             "optimizer: the name %.100s... is too long", p->name);
        CUP_TRY(cup__split_note(o, name, NULL, i == 1 || i == 2 ? &state : &shape));
    }
    return CUP_OK;
}

/* The states, into a record of the update, or for Muon among its matrices; of what has a record the
 * setting follows those before. */
static cup_status add_parameter(cup_optimizer *o, const cup_parameter *p, const cup__portion *part,
                                const float *setting, float *settings)
{
    static const char *const parts[] = {"first", "second"};
    cup_dtype dtype = p->tensor->dtype;
    cup_tensor *own[CUP__RECORD] = {p->tensor}, **r = own;
    bool matrix = is_matrix(o, p);
    int states = matrix ? cup__update_states(o->row, &o->attributes)
                        : cup__update_states(o->others, &o->others_attributes);
    if (!matrix)
        r = o->inputs + CUP__RECORDS_AT + o->plain * CUP__RECORD;
    r[CUP__VALUE] = p->tensor;
    if (dtype == CUP_F16 || (dtype == CUP_BF16 && !o->options.stochastic))
        r[CUP__MASTER] = add_master(o, p);
    for (int i = 0; i < states; i++)
        r[CUP__FIRST + i] = add_state(o, p, parts[i]);
    if (o->averages)
        CUP_TRY(add_average(o, p, r[CUP__MASTER]));
    float rate = setting[CUP__SETTING_RATE], decay = setting[CUP__SETTING_DECAY];
    if (matrix) {
        o->matrices[o->matrix_count++] =
            (cup__muon_matrix){p->tensor, r[CUP__MASTER], r[CUP__FIRST], rate, decay, part != NULL,
                               part ? *part : (cup__portion){0}};
    } else {
        settings += o->plain++ * CUP__SETTING_COUNT;
        settings[CUP__SETTING_RATE] = rate;
        settings[CUP__SETTING_DECAY] = decay;
    }
    return o->c->error.status;
}

/* Rate and decay of all parameters, a row for each; with those of their groups. */
static cup_status choose_settings(cup_optimizer *o, const cup_parameter *parameters, float *chosen)
{
    cup__groups groups;
    CUP_TRY(cup__groups_read(&o->c->error, o->options.groups, &groups));
    for (int i = 0; i < o->count; i++) {
        const cup_parameter *p = &parameters[i];
        const cup__group *group = cup__groups_find(&groups, p->name);
        float *setting = chosen + i * CUP__SETTING_COUNT;
        double rate = p->rate > 0 ? p->rate : 1, decay = p->decay ? o->options.weight_decay : 0;
        setting[CUP__SETTING_RATE] = (float)(group ? rate * group->rate : rate);
        setting[CUP__SETTING_DECAY] = (float)(group ? group->decay : decay);
    }
    return cup__groups_all_found(&o->c->error, &groups, parameters[0].name);
}

static cup_status add_parameters(cup_optimizer *o, const cup_parameter *parameters,
                                 const cup__portion *const *parts, float *settings)
{
    for (int i = 0; i < o->count; i++) {
        CUP_TRY(check_parameter(o->c, &parameters[i], i));
        CUP_TRY(check_single(o->c, parameters, i));
    }
    for (int i = 0; i < o->count; i++)
        if (o->others->op->update->coded && parts && parts[i])
            return cup__fail(&o->c->error, CUP_UNSUPPORTED,
                             "optimizer: states of 8 bits of %s, which processes share out; take "
                             "adamw, or leave parts of a model and of experts out",
                             parameters[i].name);
    CUP_TRY(choose_settings(o, parameters, settings));
    CUP_TRY(cup__split_begin(o, parameters));
    for (int i = 0; i < o->count; i++) {
        cup__tensor_retain(parameters[i].tensor);
        o->parameters[i] = parameters[i].tensor;
        CUP_TRY(cup__split_owns(o, i)
                    ? add_parameter(o, &parameters[i], parts ? parts[i] : NULL,
                                    settings + i * CUP__SETTING_COUNT, settings)
                    : add_elsewhere(o, &parameters[i]));
    }
    if (o->plain > 0)
        o->inputs[1] = cup_keep(cup_tensor_from(
            o->c, CUP_F32, 2, (int64_t[]){o->plain, CUP__SETTING_COUNT}, settings));
    if (o->averages) {
        o->averages[0] = o->inputs[0];
        o->averages[1] = cup_keep(
            cup_zeros(o->c, CUP_F32, 2, (int64_t[]){cup__optimizer_own(o), CUP__SETTING_COUNT}));
    }
    if (o->matrix_count > 0)
        o->muon =
            cup__muon_new(o->c, o->matrices, o->matrix_count, o->options.single);
    return o->c->error.status;
}

static cup_status make(cup_optimizer *o, const cup_parameter *parameters,
                       const cup__portion *const *parts)
{
    size_t count = (size_t)o->count;
    CUP_TRY(cup__split_make(o, parameters, parts));
    o->inputs = cup__calloc(CUP__RECORDS_AT + count * CUP__RECORD, sizeof *o->inputs);
    o->gradients = cup__calloc(count, sizeof *o->gradients);
    o->parameters = cup__calloc(count, sizeof *o->parameters);
    o->matrices = cup__calloc(count, sizeof *o->matrices);
    o->state = cup__calloc(count * STATES_MOST + COMMON_MOST, sizeof *o->state);
    float *settings = cup__calloc(count * CUP__SETTING_COUNT, sizeof *settings);
    bool averages = o->options.average > 0;
    if (averages)
        o->averages = cup__calloc(CUP__RECORDS_AT + count * CUP__RECORD, sizeof *o->averages);
    if ((averages && !o->averages) || !o->inputs || !o->gradients || !o->parameters ||
        !o->matrices || !o->state || !settings) {
        cup__free(settings);
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    }
    o->hyper = cup_keep(cup_tensor_new(o->c, CUP_F32, 1, (int64_t[]){3}));
    o->norm = cup_keep(cup_full(o->c, CUP_F32, 0, NULL, 0));
    o->inputs[0] = cup_keep(cup_tensor_new(o->c, CUP_F32, 1, (int64_t[]){CUP__FACTOR_COUNT}));
    /* Steps taken, beta1 and beta2 to that power, steps skipped: see step_factors. */
    const double start[] = {0, 1, 1, 0};
    o->steps = cup__optimizer_state_add(
        o, "steps", "", cup_tensor_from(o->c, CUP_F64, 1, (int64_t[]){4}, start));
    cup_status status = o->c->error.status;
    if (status == CUP_OK)
        status = add_parameters(o, parameters, parts, settings);
    cup__free(settings);
    return status == CUP_OK && cup__split_stage(o) > 2 ? cup__brought_make(o) : status;
}

cup_optimizer *cup_optimizer_new(cup_context *c, const cup_parameter *parameters, int count,
                                 const cup_optimizer_options *options)
{
    return cup__optimizer_new(c, parameters, count, options, NULL);
}

cup_optimizer *cup__optimizer_new(cup_context *c, const cup_parameter *parameters, int count,
                                  const cup_optimizer_options *options,
                                  const cup__portion *const *parts)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (count < 1 || !parameters) {
        cup__fail(&c->error, CUP_ARGUMENT, "optimizer: it needs at least one parameter");
        return NULL;
    }
    cup_optimizer *o = cup__calloc(1, sizeof *o);
    if (!o) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an optimizer");
        return NULL;
    }
    o->c = c;
    cup__context_join(c);
    o->count = count;
    if (cup__options_take(&c->error, "optimizer", &o->options, sizeof *options, options) !=
            CUP_OK ||
        cup__method_options(c, &o->options) != CUP_OK) {
        cup_optimizer_free(o);
        return NULL;
    }
    o->row = cup__method_row(o->options.method);
    o->others = cup__method_others(o->options.method);
    cup__method_attributes_of(o->row, &o->options, &o->attributes);
    cup__method_attributes_of(o->others, &o->options, &o->others_attributes);
    bool was = cup_grad_recording(c, false);
    cup_status status = make(o, parameters, parts);
    cup_grad_recording(c, was);
    if (status == CUP_OK)
        return o;
    cup_optimizer_free(o);
    return NULL;
}

void cup_optimizer_free(cup_optimizer *o)
{
    if (!o)
        return;
    for (int64_t i = 0; i < o->state_count; i++) {
        cup_tensor_free(o->state[i].tensor);
        cup__free((char *)(uintptr_t)o->state[i].name);
    }
    cup__split_free(o);
    cup__divided_free(o);
    cup__guard_free(o);
    cup__loss_scale_free(o);
    cup_tensor_free(o->hyper);
    cup_tensor_free(o->norm);
    for (int i = 0; o->inputs && i < CUP__RECORDS_AT; i++)
        cup_tensor_free(o->inputs[i]);
    if (o->averages)
        cup_tensor_free(o->averages[1]);
    for (int i = 0; o->shown && i < o->count; i++)
        cup_tensor_free(o->shown[i]);
    cup__muon_free(o->muon);
    for (int i = 0; o->parameters && i < o->count; i++)
        cup__tensor_release(o->parameters[i]);
    cup__free(o->averages);
    cup__free(o->shown);
    cup__free(o->matrices);
    cup__free(o->parameters);
    cup__free(o->inputs);
    cup__free(o->gradients);
    cup__free(o->state);
    cup__context_leave(o->c);
    cup__free(o);
}
