/* A call of an op in a context that is watched: its inputs may be used, its results hold no NaN. */
#include <math.h>
#include <stdio.h>

#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "dispatch/call.h"
#include "tensor/debug.h"

#define BLOCK 1024

enum { HAS_NAN = 1, HAS_INFINITY = 2 };

static int kind_of(double x)
{
    return isnan(x) ? HAS_NAN : isinf(x) ? HAS_INFINITY : 0;
}

static int kinds_on_cpu(const cup_tensor *t)
{
    int kinds = 0;
    if (!t->contiguous || t->dtype == CUP_F64) {
        for (int64_t i = 0; i < t->count; i++)
            kinds |= kind_of(cup__load(t, cup__offset_of(t, i)));
        return kinds;
    }
    float block[BLOCK];
    int64_t size = cup_dtype_size(t->dtype);
    for (int64_t at = 0; at < t->count; at += BLOCK) {
        int64_t count = t->count - at < BLOCK ? t->count - at : BLOCK;
        cup__load_f32(block, (const char *)t->data + at * size, t->dtype, count);
        for (int64_t i = 0; i < count; i++)
            kinds |= kind_of(block[i]);
    }
    return kinds;
}

/* The largest element is NaN where one is. */
static int kinds_on_gpu(cup_context *c, cup_tensor *t, int wanted)
{
    static const int folds[] = {CUP__OP_max, CUP__OP_min};
    cup__max_attributes attributes = {0};
    int kinds = 0;
    if (cup__cuda_of(c->device)->capturing || cup_dtype_size(t->dtype) < 2)
        return 0;
    for (int i = 0; i < (wanted & HAS_INFINITY ? 2 : 1); i++) {
        cup_tensor *y = cup__op_call(c, &cup__rows[folds[i]], &t, 1, &attributes, NULL);
        double x = y ? cup_tensor_item(y) : 0;
        if (y)
            kinds |= kind_of(x);
        cup_tensor_free(y);
    }
    return kinds;
}

/* Which of the wanted kinds a tensor has, others perhaps. The context is as it was before. */
static int kinds_of(cup_context *c, cup_tensor *t, int wanted)
{
    if (!t || !t->count || !cup__dtype_is_float(t->dtype) || c->error.status != CUP_OK)
        return 0;
    if (!c->device->is_cuda)
        return kinds_on_cpu(t);
    bool recording = c->recording;
    c->recording = false;
    cup__debug_search(c, true);
    int kinds = kinds_on_gpu(c, t, wanted);
    cup__debug_search(c, false);
    c->recording = recording;
    return kinds;
}

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
                            : kinds_of(w->c, w->in[i], HAS_NAN | HAS_INFINITY);
        came_in |= (kinds & HAS_NAN) != 0;
        if (kinds)
            used += (size_t)snprintf(inputs + used, sizeof inputs - used,
                                     "%sinput %d had %s before", used ? ", " : "", i + 1,
                                     kinds & HAS_NAN ? "a NaN" : "an infinity");
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
        if (kinds_of(w->c, out[i], HAS_NAN) & HAS_NAN)
            CUP_TRY(fail_of(w, what, out[i]));
    }
    for (int i = 0; i < w->in_count; i++) {
        snprintf(what, sizeof what, "input %d, which it changes", i + 1);
        if (w->in[i] && cup__input_changes(w->row->op, i) &&
            (kinds_of(w->c, w->in[i], HAS_NAN) & HAS_NAN))
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
            w->in[i]->context == w->c && (kinds_of(w->c, w->in[i], HAS_NAN) & HAS_NAN))
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
