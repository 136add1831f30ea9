/* A call of an op in a context that is watched: its inputs may be used, its results hold no NaN. */
#include <stdio.h>

#include "dispatch/call.h"
#include "dispatch/finite.h"
#include "tensor/debug.h"

typedef struct watched_call {
    cup_context *c;
    const cup__row *row;
    cup_tensor *const *in;
    int in_count;
    uint64_t had_nan; /* bit i: input i, which the op changes, held one before */
} watched_call;

static cup_status fail_of(watched_call *w, const char *what, const cup_tensor *t)
{
    char inputs[400] = "", text[CUP__SHAPE_TEXT], at[CUP__PLACE_TEXT];
    size_t used = 0;
    bool came_in = false;
    for (int i = 0; i < w->in_count && used < sizeof inputs - 80; i++) {
        bool changed = cup__input_changes(w->row->op, i);
        int kinds = changed ? (i < 64 && w->had_nan >> i & 1)
                            : cup__kinds_of(w->c, w->in[i], CUP__HAS_NAN | CUP__HAS_INFINITY);
        came_in |= (kinds & CUP__HAS_NAN) != 0;
        if (kinds)
            used += (size_t)snprintf(inputs + used, sizeof inputs - used,
                                     "%sinput %d had %s before", used ? ", " : "", i + 1,
                                     kinds & CUP__HAS_NAN ? "a NaN" : "an infinity");
    }
    if (cup__debug_named(w->c) && came_in)
        return CUP_OK;
    cup__call call = {.c = w->c,
                      .row = w->row,
                      .in = (cup_tensor **)(uintptr_t)w->in,
                      .in_count = w->in_count};
    return cup__call_fail(&call, CUP_STATE, "%s, %s, has a NaN%s; %s", what,
                          cup__tensor_text(t, text), cup__debug_place(w->c, at),
                          used ? inputs : "all inputs were finite");
}

static cup_status check_results(watched_call *w, cup_tensor **out)
{
    char what[40];
    /* A view makes no numbers, and may be one of memory that is yet to be written. */
    for (int i = 0; i < w->row->visible && !w->row->op->view; i++) {
        snprintf(what, sizeof what, "result %d", i + 1);
        if (cup__kinds_of(w->c, out[i], CUP__HAS_NAN) & CUP__HAS_NAN)
            CUP_TRY(fail_of(w, what, out[i]));
    }
    for (int i = 0; i < w->in_count; i++) {
        snprintf(what, sizeof what, "input %d, which it changes", i + 1);
        if (w->in[i] && cup__input_changes(w->row->op, i) &&
            (cup__kinds_of(w->c, w->in[i], CUP__HAS_NAN) & CUP__HAS_NAN))
            CUP_TRY(fail_of(w, what, w->in[i]));
    }
    return CUP_OK;
}

/* That there are inputs where the op needs some is checked by the call. */
static cup_status check_before(watched_call *w)
{
    char what[160];
    for (int i = 0; w->in && i < w->in_count; i++) {
        snprintf(what, sizeof what, "%s: input %d", w->row->name, i + 1);
        if (w->in[i] && !cup__usable(w->in[i], w->row->is_public, what)) {
            cup_status status = w->in[i]->context->error.status;
            return cup__fail(&w->c->error, status, "%s", w->in[i]->context->error.text);
        }
        if (i < 64 && cup__input_changes(w->row->op, i) && w->in[i] &&
            w->in[i]->context == w->c &&
            (cup__kinds_of(w->c, w->in[i], CUP__HAS_NAN) & CUP__HAS_NAN))
            w->had_nan |= (uint64_t)1 << i;
    }
    return w->c->error.status;
}

cup_tensor *cup__op_watched(cup_context *c, const cup__row *row, cup_tensor *const *in,
                            int in_count, const void *attributes, cup_tensor **out)
{
    cup_tensor *own[CUP__MAX_OUT] = {0}, **results = out ? out : own;
    if (cup__debug_searching(c))
        return cup__op_plain(c, row, in, in_count, attributes, out);
    cup__debug_enter(c, row->name);
    const char *outer = cup__debug_op(c, row->name);
    cup__debug_count(c);
    watched_call w = {c, row, in, in_count, 0};
    cup_tensor *y = NULL;
    if (check_before(&w) == CUP_OK)
        y = cup__op_plain(c, row, in, in_count, attributes, results);
    if (y && check_results(&w, results) != CUP_OK)
        y = NULL;
    cup__debug_op(c, outer);
    cup__debug_leave(c);
    return y;
}
