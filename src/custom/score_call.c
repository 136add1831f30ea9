/* The public call of attention by a formula. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "cupola/ops.h"
#include "custom/score.h"
#include "ops/attention/attention_mask.h"

#define ERROR(e, ...) cup__fail(&(e)->c->error, CUP_ARGUMENT, "formula: " __VA_ARGS__)

static cup_status check_options(cup_expr *e, const cup_attention_options *o)
{
    const struct {
        const char *name;
        bool given;
    } said[] = {{"soft_cap", o->soft_cap != 0},
                {"slopes", o->slopes != NULL},
                {"bias", o->bias != NULL},
                {"key_blocks", o->key_blocks != NULL},
                {"top_left", o->top_left}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (said[i].given)
            return ERROR(e, "%s goes not with attention by a formula; say it in the formula",
                         said[i].name);
    return CUP_OK;
}

/* The tensors into `in`, of which as many as the formula has follow those of attention. */
static cup_status take_tensors(cup_expr *e, cup_tensor *const *tensors, cup_tensor **in)
{
    int count = 0;
    for (int i = 0; i < e->formula.inputs; i++) {
        int before = count;
        cup__score_reads(e, i, &count);
        if (count == before)
            continue;
        if (!tensors || !tensors[before])
            return ERROR(e, "tensor %s is missing", e->names.names[i].name);
        in[before] = tensors[before];
    }
    return CUP_OK;
}

/* What may be any distance is far enough at the most that attention knows of. */
static int64_t limit_of(double distance)
{
    return (int64_t)fmax(fmin(distance, CUP__MASK_UNLIMITED), -CUP__MASK_UNLIMITED);
}

cup_tensor *cup_expr_attention(cup_expr *e, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                               cup_tensor *const *tensors, const double *parameters,
                               const cup_attention_options *options)
{
    cup_attention_options o;
    cup_tensor *in[CUP__FORMULA_INPUTS + CUP__SCORE_TENSORS] = {q, k, v};
    if (!e || e->c->error.status != CUP_OK)
        return NULL;
    if (cup__options_take(&e->c->error, "attention", &o, sizeof o, options) != CUP_OK ||
        check_options(e, &o) != CUP_OK)
        return NULL;
    if (e->formula.parameters && !parameters) {
        ERROR(e, "its parameters are missing");
        return NULL;
    }
    struct cup__score *score = cup__score_get(e);
    if (!score || take_tensors(e, tensors, in + CUP__FORMULA_INPUTS) != CUP_OK)
        return NULL;
    cup__formula_attributes a = {
        .plain = {.causal = o.causal, .scale = o.scale, .dropout = o.dropout,
                  .window_left = o.window_left, .window_right = o.window_right},
        .formula = (cup__score_formula *)score};
    for (int i = 0; i < e->formula.parameters; i++)
        a.parameters[i] = parameters[i];
    cup__key_limits limits;
    if (cup__score_limits(score, a.parameters, &e->c->error, &limits) != CUP_OK)
        return NULL;
    a.before = limit_of(limits.before);
    a.after = limit_of(limits.after);
    in[4] = o.sinks;
    in[5] = o.query_offsets;
    in[6] = o.key_offsets;
    return cup__op_call(e->c, &cup__attention_formula_row, in,
                        CUP__FORMULA_INPUTS + a.formula->tensors, &a, NULL);
}
