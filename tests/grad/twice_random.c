/* Second derivatives of random calls of every op that has them, against differences of first ones
 * along a direction, in f64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "grad/tape.h"
#include "prof/draw.h"

#define CALLS 3 /* of each op */
#define STEP 1e-5

typedef struct probe {
    cup_context *c;
    const cup__drawn *d;
    cup_tensor *in[CUP__DRAWN_INPUTS], *along[CUP__DRAWN_INPUTS];
    int count;
} probe;

static cup_tensor *wave(cup_context *c, const cup_tensor *like, double shift)
{
    cup__shape shape = cup__shape_of(like);
    cup_tensor *t = cup__full(c, &shape, 0);
    for (int64_t i = 0; t && i < t->count; i++)
        ((double *)t->data)[i] = sin(1 + shift + 0.7 * (double)i);
    return t;
}

static cup_tensor *weighed(cup_context *c, cup_tensor *t, double shift)
{
    return cup_sum(c, cup_mul(c, t, wave(c, t, shift)), NULL, 0, false);
}

/* A sum over all first derivatives of a sum over all results, recorded. */
static cup_tensor *slope_of(probe *p)
{
    cup_context *c = p->c;
    cup_tensor *in[CUP__DRAWN_INPUTS], *out[CUP__MAX_OUT] = {NULL}, *leaf[CUP__DRAWN_INPUTS];
    cup_tensor *d[CUP__DRAWN_INPUTS], *loss = NULL, *sum = NULL;
    int leaves = 0;
    const void *attributes = p->d->row->attributes_size ? p->d->attributes : NULL;
    memcpy(in, p->in, sizeof in);
    for (int i = 0; i < p->count; i++)
        if (p->along[i])
            leaf[leaves++] = in[i];
    if (cup__overwrites(p->d->row->op, attributes))
        in[0] = cup_scale(c, in[0], 1);
    cup_random_step(c, 1);
    if (!cup__op_call(c, p->d->row, in, p->count, attributes, out))
        return NULL;
    for (int i = 0; i < p->d->row->visible; i++)
        if (out[i]->dtype == CUP_F64 && cup__leads_to_parameter(c, out[i])) {
            cup_tensor *part = weighed(c, out[i], i);
            loss = loss ? cup_add(c, loss, part) : part;
        }
    if (!loss || cup_gradients_recorded(c, loss, leaf, leaves, d) != CUP_OK)
        return NULL;
    for (int i = 0; i < leaves; i++)
        if (d[i]) {
            cup_tensor *part = weighed(c, d[i], 3 + i);
            sum = sum ? cup_add(c, sum, part) : part;
        }
    return sum;
}

static double slope_at(probe *p, double step)
{
    for (int i = 0; i < p->count; i++)
        for (int64_t k = 0; p->along[i] && k < p->in[i]->count; k++)
            ((double *)p->in[i]->data)[k] += step * ((const double *)p->along[i]->data)[k];
    cup_scope_open(p->c);
    double value = cup_tensor_item(slope_of(p));
    cup_tape_clear(p->c);
    cup_scope_close(p->c);
    for (int i = 0; i < p->count; i++)
        for (int64_t k = 0; p->along[i] && k < p->in[i]->count; k++)
            ((double *)p->in[i]->data)[k] -= step * ((const double *)p->along[i]->data)[k];
    return value;
}

/* The second derivatives along the direction; the sizes of its terms in *sizes. False: none. */
static bool second_of(probe *p, double *found, double *sizes)
{
    *found = *sizes = 0;
    cup_tensor *sum = slope_of(p);
    if (!sum || !cup__leads_to_parameter(p->c, sum) || cup_backward(p->c, sum) != CUP_OK)
        return false;
    for (int i = 0; i < p->count; i++) {
        cup_tensor *g = p->along[i] ? cup_grad(p->in[i]) : NULL;
        for (int64_t k = 0; g && k < g->count; k++) {
            double term = cup__load(g, cup__offset_of(g, k)) *
                          ((const double *)p->along[i]->data)[k];
            *found += term;
            *sizes += fabs(term);
        }
    }
    return true;
}

/* Whether there was something to compare. */
static bool check(cup_context *c, const cup__drawn *d)
{
    probe p = {.c = c, .d = d};
    double found, sizes;
    p.count = cup__drawn_inputs(d, c, CUP_F64, p.in, CUP__DRAWN_INPUTS);
    for (int i = 0; i < p.count; i++)
        if (p.in[i] && p.in[i]->dtype == CUP_F64) {
            cup_require_grad(p.in[i]);
            p.along[i] = wave(c, p.in[i], 7 + i);
        }
    if (p.count < 0 || !second_of(&p, &found, &sizes) || !isfinite(found))
        return false;
    cup__text text = {0};
    double slope = (slope_at(&p, STEP) - slope_at(&p, -STEP)) / (2 * STEP);
    double half = (slope_at(&p, STEP / 8) - slope_at(&p, -STEP / 8)) / (STEP / 4);
    cup__drawn_text(d, &text);
    /* Where both steps do not agree there is a corner. */
    double apart = fmin(fabs(found - slope), fabs(found - half));
    if (!(apart <= 1e-4 * (1 + sizes)) && fabs(slope - half) <= 1e-5 * (1 + sizes))
        test_fail(__FILE__, __LINE__, "%s: %.9g, by differences %.9g", cup__text_string(&text),
                  found, half);
    cup__text_free(&text);
    return true;
}

/* 380 million rows of nothing, whose sums along them would be that many zeros. */
TEST(twice_of_rows_of_nothing)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_zeros(c, CUP_F64, 4, (int64_t[]){0, 10240, 9, 4097}), *d;
    cup_require_grad(x);
    cup_tensor *loss = cup_sum(c, cup_softmax(c, x, 0), NULL, 0, false);
    EXPECT_INT(cup_gradients_recorded(c, loss, &x, 1, &d), CUP_OK);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, d, x), NULL, 0, false)), CUP_OK);
    EXPECT_INT(cup_tensor_count(cup_grad(x)), 0);
    cup_context_free(c);
}

TEST(twice_random_calls)
{
    static const cup__draw_limits limits = {.elements = 600, .work = 2e5, .tame = true,
                                            .row_major = true, .dtypes = CUP__DTYPE(F64)};
    uint64_t seed = test_random() >> 1;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1));
    cup__drawn *d = calloc(1, sizeof *d);
    int held = 0, tries;
    for (const cup__row *row = cup__rows; row->name; row++)
        for (int k = 0; k < CALLS && row->is_public && row->op->gradient; k++) {
            cup_scope_open(c);
            if (cup__draw(c, row, &limits, seed, k, d, &tries) && d->dtype == CUP_F64)
                held += check(c, d);
            cup_tape_clear(c);
            cup_error_clear(c);
            cup_scope_close(c);
        }
    EXPECT(held > 150);
    free(d);
    cup_context_free(c);
}
