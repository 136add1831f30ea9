#include "dispatch/finite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "dispatch/call.h"
#include "tensor/debug.h"

#define BLOCK 1024

static int kind_of(double x)
{
    return isnan(x) ? CUP__HAS_NAN : isinf(x) ? CUP__HAS_INFINITY : 0;
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
    for (int i = 0; i < (wanted & CUP__HAS_INFINITY ? 2 : 1); i++) {
        cup_tensor *y = cup__op_call(c, &cup__rows[folds[i]], &t, 1, &attributes, NULL);
        double x = y ? cup_tensor_item(y) : 0;
        if (y)
            kinds |= kind_of(x);
        cup_tensor_free(y);
    }
    return kinds;
}

int cup__kinds_of(cup_context *c, cup_tensor *t, int wanted)
{
    if (!t || !t->count || !cup__dtype_is_float(t->dtype) || c->error.status != CUP_OK)
        return 0;
    if (!c->device->is_cuda)
        return kinds_on_cpu(t);
    bool recording = c->recording;
    cup__finite *finite = c->finite;
    c->recording = false;
    c->finite = NULL;
    if (c->debug)
        cup__debug_search(c, true);
    int kinds = kinds_on_gpu(c, t, wanted);
    if (c->debug)
        cup__debug_search(c, false);
    c->finite = finite;
    c->recording = recording;
    return kinds;
}

typedef struct traced_call {
    const cup__row *row;
    cup_tensor *const *in;
    int in_count;
    uint64_t nan, infinity; /* bit i: input i, which the op changes, held one before */
} traced_call;

/* What input i held before the call. */
static int kinds_before(cup_context *c, const traced_call *t, int i)
{
    if (!cup__input_changes(t->row->op, i))
        return cup__kinds_of(c, t->in[i], CUP__HAS_NAN | CUP__HAS_INFINITY);
    if (i >= 64)
        return 0;
    return (t->nan >> i & 1 ? CUP__HAS_NAN : 0) | (t->infinity >> i & 1 ? CUP__HAS_INFINITY : 0);
}

/* "input 2, first.weight, had a NaN before", of all that had something. */
static void write_inputs(cup_context *c, const traced_call *t, char *out, size_t size)
{
    const cup__finite *f = c->finite;
    size_t used = 0;
    *out = 0;
    for (int i = 0; i < t->in_count && used + 100 < size; i++) {
        int kinds = t->in[i] ? kinds_before(c, t, i) : 0;
        const char *name = kinds && f->name ? f->name(t->in[i], f->user) : NULL;
        if (kinds)
            used += (size_t)snprintf(out + used, size - used, "; input %d%s%.50s%s had %s before",
                                     i + 1, name ? ", " : "", name ? name : "", name ? "," : "",
                                     kinds & CUP__HAS_NAN ? "a NaN" : "an infinity");
    }
    if (!used)
        snprintf(out, size, "; all inputs were finite");
}

static void note(cup_context *c, const traced_call *t, const char *what, cup_tensor *of, int kinds)
{
    cup__finite *f = c->finite;
    char text[CUP__SHAPE_TEXT], inputs[200];
    bool nan = kinds & CUP__HAS_NAN;
    if (!kinds || (*f->first && !nan))
        return;
    write_inputs(c, t, inputs, sizeof inputs);
    char *to = *f->first ? f->nan : f->first;
    snprintf(to, CUP__FINITE_TEXT, "%s in %s of %s%s%s, %s, in %s of batch %lld%s",
             nan ? "a NaN" : "an infinity", what, t->row->name, f->outer ? " in " : "",
             f->outer ? f->outer : "", cup__tensor_text(of, text), f->pass, (long long)f->batch,
             inputs);
    if (nan)
        memcpy(f->nan, to, CUP__FINITE_TEXT);
}

/* Of an input, which the op changes, what it held before is not of this op. */
static void look(cup_context *c, const traced_call *t, bool of_input, int i, cup_tensor *of)
{
    char what[40];
    int wanted = *c->finite->first ? CUP__HAS_NAN : CUP__HAS_NAN | CUP__HAS_INFINITY;
    if (of_input)
        wanted &= ~kinds_before(c, t, i);
    if (!of || !wanted || *c->finite->nan)
        return;
    snprintf(what, sizeof what, "%s %d", of_input ? "input" : "result", i + 1);
    note(c, t, what, of, cup__kinds_of(c, of, wanted) & wanted);
}

static cup_tensor *call_untraced(cup_context *c, const cup__row *row, cup_tensor *const *in,
                                 int in_count, const void *attributes, cup_tensor **out)
{
    return c->debug ? cup__op_watched(c, row, in, in_count, attributes, out)
                    : cup__op_plain(c, row, in, in_count, attributes, out);
}

cup_tensor *cup__op_traced(cup_context *c, const cup__row *row, cup_tensor *const *in,
                           int in_count, const void *attributes, cup_tensor **out)
{
    cup__finite *f = c->finite;
    cup_tensor *own[CUP__MAX_OUT] = {0}, **results = out ? out : own;
    traced_call t = {row, in, in_count, 0, 0};
    if (*f->nan)
        return call_untraced(c, row, in, in_count, attributes, out);
    for (int i = 0; i < in_count && i < 64; i++) {
        bool changed = in[i] && in[i]->context == c && cup__input_changes(row->op, i);
        int kinds = changed ? cup__kinds_of(c, in[i], CUP__HAS_NAN | CUP__HAS_INFINITY) : 0;
        t.nan |= (uint64_t)((kinds & CUP__HAS_NAN) != 0) << i;
        t.infinity |= (uint64_t)((kinds & CUP__HAS_INFINITY) != 0) << i;
    }
    const char *outer = f->outer;
    f->outer = outer ? outer : row->name;
    cup_tensor *y = call_untraced(c, row, in, in_count, attributes, results);
    f->outer = outer;
    /* A view makes no numbers, and may be one of memory that is yet to be written. */
    for (int i = 0; y && i < row->visible && !row->op->view; i++)
        look(c, &t, false, i, results[i]);
    for (int i = 0; y && i < in_count; i++)
        if (cup__input_changes(row->op, i))
            look(c, &t, true, i, in[i]);
    return y;
}
