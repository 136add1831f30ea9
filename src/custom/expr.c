/* The public calls of formulas. */
#include "custom/expr.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cupola/ops.h"
#include "tensor/debug.h"

#define FUNCTION_ERROR(e, ...) cup__fail(&(e)->c->error, CUP_ARGUMENT, "formula: " __VA_ARGS__)

static cup_status add_name(cup_expr *e, const char *from, size_t length, cup__function kind,
                           int index)
{
    cup__scope_name *to;
    if (!isalpha((unsigned char)*from) || length >= sizeof to->name)
        return FUNCTION_ERROR(e, "\"%.40s\" is no name; names are up to %zu letters, digits and _, "
                                 "a letter first, with blanks between them",
                              from, sizeof to->name - 1);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)from[i]) && from[i] != '_')
            return FUNCTION_ERROR(e, "\"%.*s\" is no name", (int)length, from);
    if (!cup__grow(&e->names.names, &e->names.capacity, e->names.count, sizeof *e->names.names))
        return cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a formula");
    to = &e->names.names[e->names.count];
    memset(to, 0, sizeof *to);
    memcpy(to->name, from, length);
    for (size_t i = 0; i < e->names.count; i++)
        if (!strcmp(e->names.names[i].name, to->name))
            return FUNCTION_ERROR(e, "the name %s stands for two things", to->name);
    to->node = cup__graph_leaf(&e->graph, kind, index);
    e->names.count++;
    return e->c->error.status;
}

static cup_status add_names(cup_expr *e, const char *names, cup__function kind, int most,
                            int *count)
{
    *count = 0;
    for (const char *at = names ? names + strspn(names, " ") : ""; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (*count == most)
            return FUNCTION_ERROR(e, "it has more than %d %s", most,
                                  kind == CUP__INPUT ? "inputs" : "parameters");
        CUP_TRY(add_name(e, at, length, kind, (*count)++));
        at += length;
    }
    return CUP_OK;
}

static cup_status add_result(cup_expr *e, const cup__parsed *parsed)
{
    cup__formula *f = &e->formula;
    const cup__ending *end = &parsed->ending;
    bool folded = end->fold != CUP_EXPR_FOLD_NONE;
    if (f->results == CUP_EXPR_RESULTS)
        return FUNCTION_ERROR(e, "it has more than %d results", CUP_EXPR_RESULTS);
    if (f->results &&
        (folded != f->folded || end->keep != f->keep || end->axis_count != f->axis_count ||
         memcmp(end->axes, f->axes, (size_t)end->axis_count * sizeof *end->axes)))
        return FUNCTION_ERROR(e, "its results are not all folded over the same axes; make several "
                                 "formulas of it");
    f->folded = folded;
    f->keep = end->keep;
    f->axis_count = end->axis_count;
    memcpy(f->axes, end->axes, sizeof f->axes);
    f->result[f->results++] = (cup__program_result){parsed->node, end->fold, end->dtype};
    e->program = NULL;
    e->score = NULL;
    return CUP_OK;
}

static cup_status read_text(cup_expr *e, const char *text)
{
    cup__parsed results[CUP_EXPR_RESULTS];
    int count = cup__parse(&e->graph, &e->names, text, results, CUP_EXPR_RESULTS);
    for (int i = 0; i < count; i++)
        CUP_TRY(add_result(e, &results[i]));
    return e->c->error.status;
}

cup_expr *cup__expr_new(cup_context *c)
{
    cup_expr *e = cup__calloc(1, sizeof *e);
    if (!e) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a formula");
        return NULL;
    }
    e->c = c;
    cup__context_join(c);
    cup__graph_open(&e->graph, &c->error, CUP_EXPR_NODES);
    e->formula.graph = &e->graph;
    return e;
}

cup_expr *cup_expr_new(cup_context *c, const char *inputs, const char *parameters,
                       const char *text)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    cup_expr *e = cup__expr_new(c);
    if (!e)
        return NULL;
    cup_status status = add_names(e, inputs, CUP__INPUT, CUP_EXPR_INPUTS, &e->formula.inputs);
    if (status == CUP_OK && e->formula.inputs == 0)
        status = FUNCTION_ERROR(e, "it has no input");
    if (status == CUP_OK)
        status = add_names(e, parameters, CUP__PARAMETER, CUP_EXPR_PARAMETERS,
                           &e->formula.parameters);
    if (status == CUP_OK && text)
        status = read_text(e, text);
    if (status == CUP_OK)
        return e;
    cup_expr_free(e);
    return NULL;
}

void cup_expr_free(cup_expr *e)
{
    if (!e)
        return;
    cup__graph_close(&e->graph);
    cup__free(e->names.names);
    cup__text_free(&e->words);
    cup__context_leave(e->c);
    cup__free(e);
}

/* Building. A term is a node's number and 1. */

static bool can_build(const cup_expr *e)
{
    return e && e->c->error.status == CUP_OK;
}

cup_term cup_expr_name(cup_expr *e, const char *name)
{
    if (!can_build(e) || !name)
        return 0;
    for (size_t i = 0; i < e->names.count; i++)
        if (!strcmp(e->names.names[i].name, name))
            return e->names.names[i].node + 1;
    FUNCTION_ERROR(e, "there is no input or parameter \"%.40s\"", name);
    return 0;
}

cup_term cup_expr_number(cup_expr *e, double value)
{
    return can_build(e) ? cup__graph_number(&e->graph, value) + 1 : 0;
}

cup_term cup_expr_apply(cup_expr *e, const char *function, const cup_term *terms, int count)
{
    int nodes[3];
    if (!can_build(e) || !function || (!terms && count > 0))
        return 0;
    if (count < 1 || count > 3) {
        FUNCTION_ERROR(e, "a function takes 1 to 3 terms, not %d", count);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        if (terms[i] <= 0)
            return 0;
        if (terms[i] > e->graph.count) {
            FUNCTION_ERROR(e, "term %d is of another formula", terms[i]);
            return 0;
        }
        nodes[i] = terms[i] - 1;
    }
    return cup__apply(&e->graph, function, nodes, count) + 1;
}

cup_term cup_expr_text(cup_expr *e, const char *text)
{
    if (!can_build(e) || !text)
        return 0;
    return cup__parse(&e->graph, &e->names, text, NULL, 0) + 1;
}

static cup_status take_end(cup_expr *e, const cup_expr_end *from, cup__ending *to)
{
    cup_expr_end own, *const end = &own;
    CUP_TRY(cup__options_take(&e->c->error, "formula", end, sizeof *end, from));
    bool float_or_bool = cup__dtype_is_float(end->dtype) || end->dtype == CUP_BOOL;
    if (end->typed && (!float_or_bool || cup_dtype_size(end->dtype) == 0))
        return FUNCTION_ERROR(e, "a result is a float or bool, not %s",
                              cup_dtype_name(end->dtype));
    if (end->axis_count < 0 || end->axis_count > 8 || (end->axis_count && !end->axes) ||
        (unsigned)end->fold > CUP_EXPR_FOLD_MAX)
        return FUNCTION_ERROR(e, "a fold is one of cup_expr_fold over 0 to 8 axes");
    to->fold = end->fold;
    to->keep = end->fold && end->keep;
    to->axis_count = end->fold ? end->axis_count : 0;
    to->dtype = end->typed ? (int)end->dtype : -1;
    for (int i = 0; i < to->axis_count; i++)
        to->axes[i] = end->axes[i];
    return CUP_OK;
}

cup_status cup_expr_result(cup_expr *e, cup_term term, const cup_expr_end *end)
{
    cup__parsed parsed = {.node = term - 1, .ending.dtype = -1};
    if (!can_build(e))
        return e ? e->c->error.status : CUP_ARGUMENT;
    if (term <= 0 || term > e->graph.count)
        return FUNCTION_ERROR(e, "there is no term %d to be a result", term);
    CUP_TRY(take_end(e, end, &parsed.ending));
    return add_result(e, &parsed);
}

/* Calling. */

static cup__program *program_of(cup_expr *e)
{
    if (e->formula.results == 0) {
        FUNCTION_ERROR(e, "it has no results; add one with cup_expr_result");
        return NULL;
    }
    if (!e->program)
        e->program = cup__program_get(e->c, &e->formula);
    return e->program;
}

/* Which of equal elements a fold took is asked of the ops min and max, which remember what they
 * saw: a recorded call with such a fold is one without, and an op for each result. */
static bool needs_steps(const cup_expr *e, cup_tensor *const *inputs)
{
    bool picks = false;
    for (int j = 0; j < e->formula.results; j++)
        picks |= e->formula.result[j].fold >= CUP_EXPR_FOLD_MIN;
    return picks && e->c->tape_calls && e->c->tape_calls->wants(e->c, inputs, e->formula.inputs);
}

static cup_tensor *fold_by_op(cup_context *c, const cup__formula *f, int j, cup_tensor *t,
                              cup_dtype dtype)
{
    cup_tensor *y = NULL;
    int64_t axes[8];
    for (int i = 0; i < f->axis_count; i++)
        axes[i] = f->axes[i];
    if (f->result[j].fold == CUP_EXPR_FOLD_SUM)
        y = cup_sum(c, t, axes, f->axis_count, f->keep);
    else if (f->result[j].fold == CUP_EXPR_FOLD_MEAN)
        y = cup_mean(c, t, axes, f->axis_count, f->keep);
    else if (f->result[j].fold == CUP_EXPR_FOLD_MIN)
        y = cup_min(c, t, axes, f->axis_count, f->keep);
    else
        y = cup_max(c, t, axes, f->axis_count, f->keep);
    return y && y->dtype != dtype ? cup_cast(c, y, dtype) : y;
}

static cup_tensor *call_in_steps(cup_expr *e, cup_tensor *const *inputs,
                                 cup__expr_attributes *attributes, cup_tensor **out)
{
    cup__formula plain = e->formula;
    cup_tensor *whole[CUP__MAX_OUT] = {NULL}, *first = NULL;
    cup__call call;
    cup__expr_plan plan;
    if (cup__call_begin(&call, e->c, &e->program->row, inputs, plain.inputs, attributes) !=
            CUP_OK ||
        cup__expr_plan_make(&call, &plan) != CUP_OK)
        return NULL;
    plain.folded = plain.keep = false;
    plain.axis_count = 0;
    for (int j = 0; j < plain.results; j++) {
        plain.result[j].fold = CUP_EXPR_FOLD_NONE;
        plain.result[j].dtype = plan.wide ? CUP_F64 : CUP_F32;
    }
    attributes->program = cup__program_get(e->c, &plain);
    if (!attributes->program ||
        !cup__op_call(e->c, &attributes->program->row, inputs, plain.inputs, attributes, whole))
        return NULL;
    for (int j = 0; j < plain.results; j++) {
        cup_tensor *y = fold_by_op(e->c, &e->formula, j, whole[j], call.result[j].dtype);
        cup_tensor_free(whole[j]);
        first = j ? first : y;
        if (out)
            out[j] = y;
    }
    return e->c->error.status == CUP_OK ? first : NULL;
}

/* The bytes from the first to behind the last element. */
static void find_span(const cup_tensor *t, const char **begin, const char **end)
{
    int64_t low = 0, high = 0;
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->shape[d] - 1) * t->stride[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    *begin = (const char *)t->data + low * cup_dtype_size(t->dtype);
    *end = (const char *)t->data + (high + 1) * cup_dtype_size(t->dtype);
}

/* A result may take the place of an input whose elements it is made of one by one. */
static bool may_write(const cup_expr *e, const cup_tensor *out, const cup_tensor *in)
{
    const char *out_begin, *out_end, *in_begin, *in_end;
    if (!out->count || !in->count)
        return true;
    find_span(out, &out_begin, &out_end);
    find_span(in, &in_begin, &in_end);
    if (out_end <= in_begin || in_end <= out_begin)
        return true;
    cup__shape a = cup__shape_of(out), b = cup__shape_of(in);
    return !e->formula.folded && out->data == in->data && out->dtype == in->dtype &&
           in->contiguous && cup__shape_equal(&a, &b);
}

/* What is written to is nobody's result, and what is computed has no gradient there. */
static cup_status check_recording(cup_expr *e, cup_tensor *const *inputs, cup_tensor *const *out)
{
    cup_context *c = e->c;
    for (int j = 0; out && j < e->formula.results; j++) {
        if (!out[j] || !c->tape_calls)
            continue;
        if (c->tape_calls->holds(out[j]))
            return FUNCTION_ERROR(e, "result %d would be written over a recorded result that "
                                     "gradients flow through; write to a copy of it",
                                  j + 1);
        if (c->tape_calls->wants(c, inputs, e->formula.inputs))
            return FUNCTION_ERROR(e, "result %d is written to a tensor that is there, which is not "
                                     "recorded, and an input leads to a parameter; switch "
                                     "recording off around it with cup_grad_recording",
                                  j + 1);
    }
    return CUP_OK;
}

static cup_status check_places(cup_expr *e, cup_tensor *const *inputs, cup_tensor *const *out)
{
    for (int j = 0; out && j < e->formula.results; j++) {
        if (out[j] && out[j]->context == e->c &&
            !cup__usable(out[j], true, "formula: a result"))
            return e->c->error.status;
        for (int k = 0; out[j] && k < j; k++)
            if (out[k] && cup__tensor_overlap(out[k], out[j]))
                return FUNCTION_ERROR(e, "results %d and %d would be written to one memory; give "
                                         "each its own",
                                      k + 1, j + 1);
        for (int i = 0; out[j] && i < e->formula.inputs; i++)
            if (!may_write(e, out[j], inputs[i]))
                return FUNCTION_ERROR(e, "result %d would be written over input %s, which is still "
                                         "needed; only an input of the same dtype and shape that "
                                         "lies the same can be changed in place, and by no fold",
                                      j + 1, e->names.names[i].name);
    }
    return CUP_OK;
}

cup_tensor *cup_expr_call(cup_expr *e, cup_tensor *const *inputs, const double *parameters,
                          cup_tensor **out)
{
    if (!can_build(e))
        return NULL;
    if (!inputs || (e->formula.parameters && !parameters)) {
        FUNCTION_ERROR(e, "its %s are missing", inputs ? "parameters" : "inputs");
        return NULL;
    }
    for (int i = 0; i < e->formula.inputs; i++)
        if (!inputs[i]) {
            FUNCTION_ERROR(e, "input %s is NULL", e->names.names[i].name);
            return NULL;
        }
    cup__program *p = program_of(e);
    if (!p || check_places(e, inputs, out) != CUP_OK ||
        check_recording(e, inputs, out) != CUP_OK)
        return NULL;
    cup__expr_attributes attributes = {.program = p};
    for (int i = 0; i < e->formula.parameters; i++)
        attributes.parameters[i] = parameters[i];
    if (!(out && out[0]) && needs_steps(e, inputs))
        return call_in_steps(e, inputs, &attributes, out);
    return cup__op_call(e->c, &p->row, inputs, e->formula.inputs, &attributes, out);
}
