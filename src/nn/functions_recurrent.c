/* Recurrent layers: what goes in is multiplied for all steps at once, what was remembered step by
 * step. */
#include <limits.h>

#include "base/memory.h"
#include "dispatch/attributes.h"
#include "nn/functions.h"

/* A call, and its gates: 4 of a long short-term memory, 3 of gated recurrent units. */
typedef struct recurrent {
    cup_context *c;
    const char *name;
    int gates;
    int64_t steps, rows, width;
    cup_tensor *inputs, *hidden_weight, *hidden_bias; /* inputs [T,N,gates H] */
} recurrent;

static bool fits(const cup_tensor *t, int ndim, int64_t a, int64_t b)
{
    return t->ndim == ndim && t->shape[0] == a && (ndim < 2 || t->shape[1] == b);
}

static bool begin(recurrent *r, cup_tensor *x, cup_tensor *const *weights, int count,
                  cup_tensor *h)
{
    cup_context *c = r->c;
    if (!cup__function_begin(c, r->name, x) || !cup__function_begin(c, r->name, h) ||
        !cup__function_begin(c, r->name, weights && count > 0 ? weights[0] : NULL))
        return false;
    bool good = x->ndim == 3 && h->ndim == 2 && x->shape[0] >= 1 && x->shape[0] <= INT_MAX &&
                (count == 2 || count == 4);
    for (int i = 0; good && i < count; i++)
        good = weights[i] != NULL;
    if (good) {
        r->steps = x->shape[0];
        r->rows = x->shape[1];
        r->width = h->shape[1];
        int64_t all = r->gates * r->width;
        good = fits(h, 2, r->rows, r->width) && fits(weights[0], 2, all, x->shape[2]) &&
               fits(weights[1], 2, all, r->width);
        for (int i = 2; i < count; i++)
            good = good && fits(weights[i], 1, all, 0);
    }
    if (!good) {
        cup_fail(c, CUP_SHAPE,
                 "%s: x must be [T,N,I] with a step or more, h [N,H], and the weights [%d H,I], "
                 "[%d H,H] and, where there are four, two biases [%d H]",
                 r->name, r->gates, r->gates, r->gates);
        return false;
    }
    r->inputs = cup_linear(c, x, weights[0], count > 2 ? weights[2] : NULL);
    r->hidden_weight = weights[1];
    r->hidden_bias = count > 2 ? weights[3] : NULL;
    return r->inputs != NULL;
}

/* What step t adds to the gates, [N,gates H]. */
static cup_tensor *input_of(const recurrent *r, int64_t t)
{
    cup_tensor *part = cup__part(r->c, r->inputs, 0, t, 1);
    return cup_reshape(r->c, part, 2, (int64_t[]){r->rows, r->gates * r->width});
}

/* The next h; the cell is moved on. */
static cup_tensor *step_lstm(const recurrent *r, int64_t t, cup_tensor *h, cup_tensor **cell)
{
    cup_context *c = r->c;
    cup_tensor *gates = cup_linear_add(c, h, r->hidden_weight, input_of(r, t), r->hidden_bias);
    cup_tensor *next = NULL, *last = *cell;
    if (cup__lstm_cell(c, gates, last, &next, cell) != CUP_OK)
        return NULL;
    return next;
}

static cup_tensor *step_gru(const recurrent *r, int64_t t, cup_tensor *h)
{
    return cup__gru_cell(r->c, input_of(r, t),
                         cup_linear(r->c, h, r->hidden_weight, r->hidden_bias), h);
}

/* All steps' h one behind another, and the last of them in *last. */
static cup_tensor *run(const recurrent *r, cup_tensor *h, cup_tensor **cell, cup_tensor **last)
{
    cup_context *c = r->c;
    cup_tensor **all = cup__calloc((size_t)r->steps, sizeof *all), *y = NULL;
    if (!all) {
        cup_fail(c, CUP_MEMORY, "%s: out of host memory", r->name);
        return NULL;
    }
    for (int64_t t = 0; t < r->steps && h; t++)
        all[t] = h = cell ? step_lstm(r, t, h, cell) : step_gru(r, t, h);
    if (h)
        y = cup_stack(c, all, (int)r->steps, 0);
    cup__free(all);
    *last = y ? h : NULL;
    return y;
}

cup_status cup_lstm(cup_context *c, cup_tensor *x, cup_tensor *h, cup_tensor *cell,
                    cup_tensor *const *weights, int count, cup_tensor **out)
{
    recurrent r = {.c = c, .name = "lstm", .gates = 4};
    cup_tensor *last = NULL, *all = NULL;
    if (begin(&r, x, weights, count, h) && cup__function_begin(c, r.name, cell)) {
        if (fits(cell, 2, r.rows, r.width))
            all = run(&r, h, &cell, &last);
        else
            cup_fail(c, CUP_SHAPE, "lstm: the cell must have the shape of h");
    }
    if (out) {
        out[0] = all;
        out[1] = last;
        out[2] = all ? cell : NULL;
    }
    return c ? cup_error(c) : CUP_ARGUMENT;
}

cup_status cup_gru(cup_context *c, cup_tensor *x, cup_tensor *h, cup_tensor *const *weights,
                   int count, cup_tensor **out)
{
    recurrent r = {.c = c, .name = "gru", .gates = 3};
    cup_tensor *last = NULL;
    cup_tensor *all = begin(&r, x, weights, count, h) ? run(&r, h, NULL, &last) : NULL;
    if (out) {
        out[0] = all;
        out[1] = last;
    }
    return c ? cup_error(c) : CUP_ARGUMENT;
}
