/* What can be asked of a formula: its derivatives, its text, its time. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cuda/cuda.h"
#include "custom/expr.h"

static bool copy_names(cup_expr *to, const cup_expr *from)
{
    to->names.names = cup__calloc(from->names.count, sizeof *to->names.names);
    if (!to->names.names) {
        cup__fail(&to->c->error, CUP_MEMORY, "out of host memory for a formula");
        return false;
    }
    memcpy(to->names.names, from->names.names, from->names.count * sizeof *to->names.names);
    to->names.count = to->names.capacity = from->names.count;
    to->formula.inputs = from->formula.inputs;
    to->formula.parameters = from->formula.parameters;
    return true;
}

static bool derive(cup_expr *e, int node, int input)
{
    int slopes[CUP_EXPR_INPUTS], one = cup__graph_number(&e->graph, 1);
    if (one < 0 || cup__derive(&e->graph, &node, &one, 1, slopes, e->formula.inputs) < 0)
        return false;
    int slope = slopes[input] < 0 ? cup__graph_number(&e->graph, 0) : slopes[input];
    e->formula.result[0] = (cup__program_result){slope, CUP_EXPR_FOLD_NONE, -1};
    e->formula.results = 1;
    return slope >= 0;
}

cup_expr *cup_expr_derivative(cup_expr *e, int result, int input)
{
    if (!e || e->c->error.status != CUP_OK)
        return NULL;
    const cup__formula *f = &e->formula;
    if (result < 0 || result >= f->results || input < 0 || input >= f->inputs) {
        cup__fail(&e->c->error, CUP_ARGUMENT,
                  "formula: it has no result %d or no input %d; they are numbered from 0", result,
                  input);
        return NULL;
    }
    if (f->result[result].fold) {
        cup__fail(&e->c->error, CUP_UNSUPPORTED,
                  "formula: the derivative of a folded result is not elementwise; derive what is "
                  "folded");
        return NULL;
    }
    cup_expr *d = cup__expr_new(e->c);
    if (d)
        d->graph.most = CUP__PROGRAM_NODES;
    if (d && copy_names(d, e) && cup__graph_copy(&d->graph, &e->graph) &&
        derive(d, f->result[result].node, input))
        return d;
    cup_expr_free(d);
    return NULL;
}

#define ENDING 160 /* bytes of the words around a result */

/* "bf16(sum[-1,keep](" and as many closing parentheses. */
static void write_ending(const cup__formula *f, int j, char before[ENDING], char after[4])
{
    static const char *const folds[] = {"", "sum", "mean", "min", "max"};
    const cup__program_result *r = &f->result[j];
    cup__text text = {0};
    after[0] = 0;
    if (r->dtype >= 0) {
        cup__text_add(&text, "%s(", cup_dtype_name((cup_dtype)r->dtype));
        strcat(after, ")");
    }
    if (r->fold) {
        cup__text_add(&text, "%s[", folds[r->fold]);
        for (int i = 0; i < f->axis_count; i++)
            cup__text_add(&text, "%s%d", i ? "," : "", f->axes[i]);
        cup__text_add(&text, "%s](", !f->keep ? "" : f->axis_count ? ",keep" : "keep");
        strcat(after, ")");
    }
    memset(before, 0, ENDING);
    if (text.length < ENDING)
        memcpy(before, cup__text_string(&text), text.length);
    cup__text_free(&text);
}

const char *cup_expr_words(cup_expr *e)
{
    if (!e || e->c->error.status != CUP_OK)
        return NULL;
    const char *names[CUP_EXPR_INPUTS + CUP_EXPR_PARAMETERS];
    char before[CUP_EXPR_RESULTS][ENDING], after[CUP_EXPR_RESULTS][4];
    const char *begin[CUP_EXPR_RESULTS], *end[CUP_EXPR_RESULTS];
    int nodes[CUP_EXPR_RESULTS];
    for (size_t i = 0; i < e->names.count; i++)
        names[i] = e->names.names[i].name;
    for (int j = 0; j < e->formula.results; j++) {
        nodes[j] = e->formula.result[j].node;
        write_ending(&e->formula, j, before[j], after[j]);
        begin[j] = before[j];
        end[j] = after[j];
    }
    cup__text_free(&e->words);
    if (cup__graph_words(&e->graph, nodes, e->formula.results, names, names + e->formula.inputs,
                         begin, end, &e->words))
        return cup__text_string(&e->words);
    cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a formula's text");
    return NULL;
}

#define RUNS 20
#define WARM 3

static cup_status time_once(cup_expr *e, cup_tensor *const *inputs, const double *parameters,
                            cup__timer *timer, double *us)
{
    double start = cup__clock();
    if (timer)
        CUP_TRY(cup__timer_start(timer));
    cup_scope_open(e->c);
    cup_expr_call(e, inputs, parameters, NULL);
    cup_status status = e->c->error.status;
    if (timer && status == CUP_OK) {
        status = cup__timer_stop(timer, us);
        *us *= 1000;
    } else {
        *us = (cup__clock() - start) * 1e6;
    }
    cup__scope_pop(e->c);
    return status;
}

cup_status cup_expr_time(cup_expr *e, cup_tensor *const *inputs, const double *parameters,
                         double *microseconds)
{
    if (!e)
        return CUP_ARGUMENT;
    if (e->c->error.status != CUP_OK)
        return e->c->error.status;
    if (!microseconds)
        return cup__fail(&e->c->error, CUP_ARGUMENT, "formula: the place for its time is NULL");
    double us[RUNS];
    cup__timer *timer = NULL;
    bool recording = e->c->recording;
    e->c->recording = false;
    cup_status status = CUP_OK;
    if (e->c->device->is_cuda)
        status = cup__timer_new(cup__cuda_of(e->c->device), &timer);
    for (int i = 0; i < WARM + RUNS && status == CUP_OK; i++)
        status = time_once(e, inputs, parameters, timer, &us[i < WARM ? 0 : i - WARM]);
    cup__timer_free(timer);
    e->c->recording = recording;
    if (status == CUP_OK)
        *microseconds = cup__median(us, RUNS);
    return status;
}
