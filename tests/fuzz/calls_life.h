/* Of the sequences of calls.c those calls that say how long tensors and what is recorded live, and
 * those that go backward. */
#ifndef FUZZ_CALLS_LIFE_H
#define FUZZ_CALLS_LIFE_H

#include "calls.h"

#include "base/memory.h"
#include "cupola/ops.h"

/* The sum over all dimensions, or those that are drawn; NULL: it failed. */
static thing *sum_over(game *g, thing *x, bool all, bool keep)
{
    int64_t axes[3], shape[3];
    int count = 0, ndim = 0;
    bool folded[3] = {true, true, true};
    for (int i = 0; i < x->ndim && !all; i++)
        if ((folded[i] = draw(g, 2)))
            axes[count++] = draw(g, 2) ? i : i - x->ndim;
    for (int i = 0; i < 3 && !count; i++)
        folded[i] = true;
    for (int i = 0; i < x->ndim; i++)
        if (!folded[i] || keep)
            shape[ndim++] = folded[i] ? 1 : x->shape[i];
    cup_tensor *t = cup_sum(g->c, x->t, axes, count, keep);
    if (!worked(g, t != NULL))
        return NULL;
    rule r;
    rule_begin(&r, count_of(ndim, shape));
    for (int64_t i = 0, n = count_of(x->ndim, x->shape); i < n; i++) {
        int64_t to = 0, rest = i, at[3];
        for (int k = x->ndim - 1; k >= 0; k--)
            at[k] = rest % x->shape[k], rest /= x->shape[k];
        for (int k = 0; k < x->ndim; k++)
            to = folded[k] ? to : to * x->shape[k] + at[k];
        rule_add(&r, to, 0, i, 1, value_at(x, i));
    }
    add_result(g, t, ndim, shape, &r, &x, 1);
    return &g->things[g->count - 1];
}

/* What ended with its scope can be named no more. */
static void end_scope(game *g)
{
    if (g->unopened) {
        g->unopened--;
        return;
    }
    for (int i = 0; i < g->count; i++)
        if (g->things[i].t && g->things[i].scope == g->depth)
            g->things[i].t = NULL;
    if (g->without_grad[g->depth])
        g->recording = g->recorded[g->depth];
    g->depth--;
}

static void open_scope(game *g, bool without_grad)
{
    if (g->depth + g->unopened > 5)
        return;
    (without_grad ? cup_scope_open_without_grad : cup_scope_open)(g->c);
    if (!worked(g, cup_error(g->c) == CUP_OK)) {
        g->unopened++;
        return;
    }
    g->recorded[++g->depth] = g->recording;
    g->without_grad[g->depth] = without_grad;
    g->recording = g->recording && !without_grad;
}

static void close_scope(game *g)
{
    bool last = g->depth == 1 && !g->unopened && !g->without_grad[1];
    if (!g->depth)
        return;
    cup_scope_close(g->c);
    end_scope(g);
    if (last)
        drop_tape(g);
}

static void return_from_scope(game *g)
{
    thing *x = pick(g);
    if (!x || !g->depth)
        return;
    cup_tensor *t = cup_scope_return(g->c, x->t);
    MUST(t == x->t);
    if (!g->unopened && x->scope == g->depth)
        x->scope--;
    end_scope(g);
}

static void call_life(game *g)
{
    thing *x;
    switch (draw(g, 6)) {
    case 0:
    case 1:
        open_scope(g, draw(g, 3) == 0);
        break;
    case 2:
        close_scope(g);
        break;
    case 3:
        return_from_scope(g);
        break;
    case 4:
        if ((x = pick(g)) && worked(g, cup_keep(x->t) == x->t))
            x->scope = -1;
        break;
    default:
        if ((x = pick(g))) {
            cup_tensor_free(x->t);
            x->t = NULL;
        }
    }
}

static void call_require(game *g, thing *x)
{
    bool ok = allowed(g, cup_require_grad(x->t) == x->t);
    MUST(ok != (node_of(g, x) && !node_of(g, x)->parameter) || g->failing);
    if (!ok || node_of(g, x))
        return;
    node *was = x->node; /* a result whose tape is gone keeps its gradient */
    x->node = make(g, sizeof *x->node);
    if (was && was->has_sum) {
        memcpy(x->node->sum, was->sum, sizeof was->sum);
        memcpy(x->node->sum_size, was->sum_size, sizeof was->sum_size);
        x->node->has_sum = true;
    }
    x->node->parameter = true;
    x->node->count = count_of(x->ndim, x->shape);
}

/* Leaves the tape as backward does, or drops it where backward was refused. */
static void end_backward(game *g, bool ok)
{
    if (!ok)
        cup_tape_clear(g->c);
    if (!ok || !g->keeps)
        drop_tape(g);
}

static void add_sums(game *g)
{
    for (int i = 0; i < g->count; i++) {
        node *n = g->things[i].node;
        if (!n || !(n->parameter || n->retained))
            continue;
        for (int64_t k = 0; k < n->count; k++) {
            n->sum[k] += n->way[k];
            n->sum_size[k] += n->way_size[k];
        }
        n->has_sum = n->has_sum || n->reached;
        n->reached = false;
    }
}

/* A loss of one element, made of a recorded result most often. */
static thing *pick_loss(game *g)
{
    thing *x = pick_of(g, -1, draw(g, 4) != 0);
    return !x || count_of(x->ndim, x->shape) == 1 ? x : sum_over(g, x, true, false);
}

static void call_backward(game *g)
{
    double data[MOST];
    thing *x = pick_loss(g), *second = draw(g, 2) ? pick_of(g, -1, true) : NULL;
    cup_tensor *gradient = NULL;
    if (!x)
        return;
    forget_ways(g);
    send_back(node_of(g, x), NULL);
    if (second) {
        int64_t count = count_of(second->ndim, second->shape);
        for (int64_t i = 0; i < count; i++)
            data[i] = (double)draw(g, 5) - 2;
        gradient = cup_tensor_from(g->c, CUP_F64, second->ndim, second->shape, data);
        if (!worked(g, gradient != NULL))
            return;
        send_back(node_of(g, second), data);
    }
    go_back(g);
    bool ok = allowed(g, second ? cup_backward_from(g->c, (cup_tensor *[]){x->t, second->t},
                                                    (cup_tensor *[]){NULL, gradient}, 2) == CUP_OK
                                : cup_backward(g->c, x->t) == CUP_OK);
    if (ok)
        add_sums(g);
    else
        forget_sums(g);
    end_backward(g, ok);
}

static void call_gradients(game *g)
{
    thing *loss = pick_loss(g), *in[2] = {pick_of(g, -1, true), pick_of(g, -1, true)};
    cup_tensor *out[2] = {NULL, NULL};
    if (!loss || !in[0] || !in[1])
        return;
    int count = in[0] == in[1] ? 1 : 2;
    forget_ways(g);
    send_back(node_of(g, loss), NULL);
    go_back(g);
    bool ok = allowed(g, cup_gradients(g->c, loss->t, (cup_tensor *[]){in[0]->t, in[1]->t}, count,
                                       out) == CUP_OK);
    MUST(ok || (!out[0] && !out[1]));
    cup__memory_fail_at(0, false);
    for (int i = 0; ok && i < count; i++) {
        node *n = node_of(g, in[i]);
        MUST(n != NULL);
        if (out[i])
            must_be(out[i], n->count, n->way, n->way_size);
        cup_tensor_free(out[i]);
        for (int64_t k = 0; !out[i] && k < n->count; k++)
            MUST(n->way_size[k] == 0);
    }
    end_backward(g, ok);
}

static void call_grad(game *g)
{
    thing *x = pick(g);
    if (!x)
        return;
    switch (draw(g, 10)) {
    case 0:
    case 1:
        call_require(g, x);
        break;
    case 2:
        cup_grad_clear(x->t);
        if (x->node)
            clear_sum(x->node);
        break;
    case 3:
        MUST(cup_tape_keep(g->c, !g->keeps) == g->keeps);
        if (worked(g, cup_error(g->c) == CUP_OK)) /* it may need a tape */
            g->keeps = !g->keeps;
        break;
    case 4:
        MUST(cup_grad_recording(g->c, true) == g->recording);
        g->recording = true;
        break;
    case 5:
        if (allowed(g, cup_retain_grad(x->t) == x->t) && node_of(g, x))
            x->node->retained = true;
        break;
    case 6:
        call_gradients(g);
        break;
    default:
        call_backward(g);
    }
}

#endif
