/* Backward: walks the tape from its end and hands gradients on until they reach what they are
 * wanted of. */
#include <string.h>

#include "base/memory.h"
#include "grad/tape.h"
#include "dispatch/attributes.h"

/* Gradients on their way are shared by reference and only added to in place when nothing else
 * sees their memory. */
static bool is_ours_alone(const cup_tensor *d)
{
    const cup__storage *storage = d->storage;
    return !d->context->twice && d->refs == 1 && storage->refs == 1 && !storage->foreign &&
           d->contiguous;
}

static void hold(cup_tensor **slot, cup_tensor *d)
{
    cup__tensor_retain(d);
    cup__tensor_release(*slot);
    *slot = d;
}

cup_status cup__grad_add(cup_context *c, cup_tensor **sum, cup_tensor *d)
{
    if (!*sum) {
        hold(sum, d);
        return CUP_OK;
    }
    cup_tensor *in[] = {*sum, d}, *out[] = {is_ours_alone(*sum) ? *sum : NULL};
    cup_tensor *added = cup__op_call(c, &cup__rows[CUP__OP_add], in, 2, NULL, out);
    if (added && added != *sum)
        hold(sum, added);
    return c->error.status;
}

cup_status cup__grad_give(cup_context *c, cup_tensor **sum, cup_tensor *d)
{
    if (!*sum && !(is_ours_alone(d) && d->scope >= 0))
        d = cup_copy(c, d);
    return d ? cup__grad_add(c, sum, d) : c->error.status;
}

const char *cup__node_name(const cup__node *node)
{
    return node->row ? node->row->name : node->custom ? node->custom->name : "a recomputed block";
}

cup_status cup__tape_check(cup_context *c, const cup__node *node)
{
    for (int i = 0; i < node->in_count + node->out_count; i++) {
        const cup__saved *saved = &node->in[i];
        if (saved->tensor && saved->tensor->storage->version != saved->version)
            return cup__fail(&c->error, CUP_STATE,
                             "backward of %s: a value it needs was changed in place after it was "
                             "computed; change parameters only after cup_backward",
                             cup__node_name(node));
    }
    return CUP_OK;
}

cup_tensor **cup__walk_end(const cup__walk *walk, cup_tensor *parameter)
{
    for (; walk; walk = walk->outer) {
        for (int i = 0; i < walk->count; i++)
            if (walk->inputs[i] == parameter)
                return walk->out ? &walk->out[i] : &parameter->grad;
        if (walk->only)
            return NULL;
    }
    return &parameter->grad;
}

/* The place in `out` of a result of a node that is an input of the walk; NULL: it is none. */
static cup_tensor **end_of_result(const cup__walk *walk, size_t number, int output)
{
    for (int i = 0; i < walk->count && walk->out; i++) {
        const cup_tensor *t = walk->inputs[i];
        if (!t->is_parameter && t->node == number && t->output == output)
            return &walk->out[i];
    }
    return NULL;
}

/* Where the gradient of a node's input goes; NULL: it is not wanted. */
static cup_tensor **slot_of(cup_context *c, const cup__walk *walk, const cup__edge *edge,
                            int output)
{
    if (edge->parameter)
        return cup__walk_end(walk, edge->parameter);
    if (!edge->node || (walk->needed && !walk->needed[edge->node - 1]))
        return NULL;
    return &c->tape->nodes[edge->node - 1]->d_out[output];
}

/* What the gradient of one node works with, in one block of memory. */
typedef struct workings {
    cup_tensor **d_in, **d_pre, **pre, **sum; /* for each input */
    cup__past *past;
    cup_tensor **values; /* for each input and each result */
    cup__shape *shapes;
    bool *wanted;
    bool waits; /* parameters get theirs later */
} workings;

static bool workings_make(workings *w, const cup__node *node)
{
    size_t in = (size_t)node->in_count, values = in + (size_t)node->out_count;
    size_t bytes = (4 * in + values) * sizeof(cup_tensor *) + in * sizeof(cup__past) +
                   values * sizeof(cup__shape) + in * sizeof(bool);
    w->shapes = cup__calloc(1, bytes);
    if (!w->shapes)
        return false;
    w->values = (cup_tensor **)(w->shapes + values);
    w->d_in = w->values + values;
    w->d_pre = w->d_in + in;
    w->pre = w->d_pre + in;
    w->sum = w->pre + in;
    w->past = (cup__past *)(w->sum + in);
    w->wanted = (bool *)(w->past + in);
    w->waits = false;
    return true;
}

/* Whether a product may hand its gradient past the activation that its input came from. */
static cup__past way_past(const cup__walk *walk, const cup__edge *edge, const cup__node *from)
{
    bool seen = from->retained[0] != NULL;
    for (; walk; walk = walk->outer) /* a block may use what was computed outside of it */
        seen |= end_of_result(walk, edge->node, 0) != NULL;
    return from->row && edge->output == 0 && !seen ? from->row->op->past : NULL;
}

/* Says of each input what is wanted and what is there; false: nothing is wanted. */
static bool look_around(cup_context *c, const cup__walk *walk, const cup__node *node, workings *w)
{
    bool any = false;
    for (int i = 0; i < node->in_count + node->out_count; i++) {
        w->values[i] = node->in[i].tensor;
        w->shapes[i] = node->in[i].shape;
    }
    for (int i = 0; i < node->in_count; i++) {
        const cup__edge *edge = &node->edges[i];
        cup_tensor **slot = slot_of(c, walk, edge, edge->output);
        any |= w->wanted[i] = slot != NULL;
        if (slot && edge->node) {
            const cup__node *from = c->tape->nodes[edge->node - 1];
            w->past[i] = c->twice ? NULL : way_past(walk, edge, from);
            w->pre[i] = w->past[i] ? from->out[1].tensor : NULL;
        }
        w->sum[i] = slot && *slot && is_ours_alone(*slot) ? *slot : NULL;
    }
    return any;
}

static bool is_empty(const cup__shape *shape)
{
    for (int d = 0; d < shape->ndim; d++)
        if (shape->size[d] == 0)
            return true;
    return false;
}

/* Where no input has elements, there is nothing to compute: a gradient that is composed of ops
 * could have results that have, such as sums along a dimension of none, and many of them. */
static bool give_nothing(cup_context *c, const cup__node *node, workings *w)
{
    for (int i = 0; i < node->in_count; i++)
        if (w->wanted[i] && !is_empty(&w->shapes[i]))
            return false;
    for (int i = 0; i < node->in_count; i++)
        w->d_in[i] = w->wanted[i] && cup__dtype_is_float(w->shapes[i].dtype)
                         ? cup__full(c, &w->shapes[i], 0)
                         : NULL; /* a mask that an op kept for itself has none */
    return true;
}

static cup_status gradient_of(cup_context *c, const cup__walk *walk, const cup__node *node,
                              workings *w)
{
    cup__grad g = {
        .c = c,
        .row = node->row,
        .attributes = node->attributes,
        .in_count = node->in_count,
        .out_count = node->out_count,
        .in = w->values,
        .out = w->values + node->in_count,
        .in_shape = w->shapes,
        .out_shape = w->shapes + node->in_count,
        .wanted = w->wanted,
        .d_out = node->d_out,
        .d_in = w->d_in,
        .pre = w->pre,
        .past = w->past,
        .d_pre = w->d_pre,
        .sum = w->sum,
        .sequence = (int64_t)node->share << 32 | node->sequence,
        .kept = walk->keep,
    };
    const cup__op *op = node->row->op;
    if (give_nothing(c, node, w))
        return c->error.status;
    cup_status status = (c->twice ? op->composed : op->gradient)(&g);
    return status == CUP_OK ? c->error.status : status;
}

static cup_status gradient_of_custom(cup_context *c, const cup__node *node, workings *w)
{
    /* Kernels of users take tensors in row-major order only. */
    for (int i = 0; i < node->out_count; i++) {
        cup_tensor *d = node->d_out[i] ? cup__contiguous(c, node->d_out[i]) : NULL;
        if (d)
            hold(&node->d_out[i], d);
    }
    CUP_TRY(c->error.status);
    const cup_custom_grad g = {
        .inputs = w->values,
        .outputs = w->values + node->in_count,
        .d_outputs = node->d_out,
        .wanted = w->wanted,
        .d_inputs = w->d_in,
        .input_count = node->in_count,
        .output_count = node->out_count,
        .attributes = node->attributes,
    };
    return cup__custom_backward(c, node, &g);
}

static cup_status check_twice(cup_context *c, const cup__node *node)
{
    bool can = node->row ? node->row->op->composed != NULL
                         : cup__node_is_block(node) || node->custom->second_derivatives;
    if (!c->twice || can)
        return CUP_OK;
    return cup__fail(&c->error, CUP_UNSUPPORTED,
                     "the gradient of %s cannot be recorded, so that second derivatives cannot be "
                     "had through it; %s",
                     cup__node_name(node),
                     node->row ? "docs/GRADIENTS.md lists the ops to write it with"
                               : "set its second_derivatives if its backward allows it");
}

static cup_status gradients_of(cup_context *c, const cup__walk *walk, cup__node *node, workings *w)
{
    CUP_TRY(check_twice(c, node));
    if (node->custom)
        return gradient_of_custom(c, node, w);
    return node->row ? gradient_of(c, walk, node, w)
                     : cup__recompute_backward(c, walk, node, w->wanted, w->d_in);
}

static cup_status deliver(cup_context *c, const cup__walk *walk, const cup__edge *edge, int output,
                          cup_tensor *d)
{
    cup_tensor **slot = d ? slot_of(c, walk, edge, output) : NULL;
    if (!slot)
        return CUP_OK;
    return edge->parameter ? cup__grad_give(c, slot, d) : cup__grad_add(c, slot, d);
}

/* Whether a node gives the gradients of its parameters by themselves, while a sum is on its way. */
static bool may_wait(const cup_context *c, const cup__walk *walk, const cup__node *node,
                     const workings *w)
{
    const cup__tape *tape = c->tape;
    bool own = false, rest = false;
    if (!tape->hides || tape->later_count == CUP__LATER_MOST || c->twice || walk->keep ||
        !node->row || !node->row->op->apart || !node->row->op->apart(node->row->op, node->d_out))
        return false;
    for (int i = 0; i < node->in_count; i++)
        *(node->edges[i].parameter ? &own : &rest) |= w->wanted[i];
    return own && rest;
}

/* What was made again for the node is still there when its turn comes once more. */
static void keep_again(cup__node *node, const workings *w)
{
    for (int i = 0; i < node->in_count; i++) {
        cup__saved *saved = &node->in[i];
        if (!saved->maker)
            continue;
        cup__tensor_retain(w->values[i]);
        saved->tensor = w->values[i];
        saved->version = w->values[i]->storage->version;
        saved->maker = 0;
    }
}

static cup_status work(cup_context *c, const cup__walk *walk, cup__node *node, workings *w)
{
    /* What is used inside a recomputed block is not among its inputs. */
    if (!look_around(c, walk, node, w) && !cup__node_is_block(node))
        return CUP_OK;
    CUP_TRY(cup__tape_check(c, node));
    for (int i = 0; i < node->in_count; i++)
        if (node->in[i].maker && !(w->values[i] = cup__tape_again(c, node->in[i].maker)))
            return c->error.status;
    if (may_wait(c, walk, node, w)) {
        keep_again(node, w);
        for (int i = 0; i < node->in_count; i++)
            w->wanted[i] &= !node->edges[i].parameter;
        w->waits = true;
    }
    CUP_TRY(gradients_of(c, walk, node, w));
    for (int i = 0; i < node->in_count; i++) {
        const cup__edge *edge = &node->edges[i];
        CUP_TRY(deliver(c, walk, edge, edge->output, w->d_in[i]));
        CUP_TRY(deliver(c, walk, edge, 1, w->d_pre[i]));
    }
    return CUP_OK;
}

/* `waits` becomes whether gradients of parameters are left for later. */
static cup_status step_back(cup_context *c, const cup__walk *walk, cup__node *node, bool *waits)
{
    workings w;
    if (!workings_make(&w, node))
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    cup_status status = work(c, walk, node, &w);
    *waits = w.waits;
    cup__free(w.shapes);
    return status;
}

/* Takes the node of that number from the tape. The ways to what was computed before it are done. */
static void put_off(cup_context *c, const cup__walk *walk, size_t number)
{
    cup__tape *tape = c->tape;
    cup__node *node = tape->nodes[number - 1];
    for (int i = 0; i < node->in_count; i++)
        node->edges[i].node = 0;
    tape->nodes[number - 1] = NULL;
    tape->later[tape->later_count++] = (cup__later){node, walk};
}

/* The gradients that were put off, in that order. */
static cup_status catch_up(cup_context *c, cup_status status)
{
    cup__tape *tape = c->tape;
    int count = tape->later_count;
    bool waits;
    tape->later_count = 0;
    tape->began = false;
    for (int i = 0; i < count; i++) {
        if (status == CUP_OK) {
            cup_scope_open(c);
            status = step_back(c, tape->later[i].walk, tape->later[i].node, &waits);
            cup__scope_pop(c);
        }
        cup__node_free(tape->later[i].node);
    }
    return status;
}

/* Gives the gradients of results to those who asked for them. */
static cup_status give_results(cup_context *c, const cup__walk *walk, size_t number)
{
    const cup__node *node = c->tape->nodes[number - 1];
    for (int i = 0; i < node->out_count; i++) {
        cup_tensor *d = node->d_out[i], **end = end_of_result(walk, number, i);
        if (d && end)
            CUP_TRY(cup__grad_give(c, end, d));
        if (d && node->retained[i] && !walk->only)
            CUP_TRY(cup__grad_give(c, &node->retained[i]->grad, d));
    }
    return CUP_OK;
}

static bool is_reached(const cup__walk *walk, const cup__node *node, size_t number)
{
    bool reached = false;
    for (int i = 0; i < node->out_count; i++)
        reached |= node->d_out[i] != NULL;
    return reached && !(walk->needed && !walk->needed[number - 1]);
}

static void forget(cup__node *node)
{
    for (int i = 0; i < node->out_count; i++) {
        cup__tensor_release(node->d_out[i]);
        node->d_out[i] = NULL;
    }
    cup__tensor_release(node->again);
    node->again = NULL;
}

static cup_status step(cup_context *c, const cup__walk *walk, size_t number)
{
    bool waits = false;
    c->tape->began = false;
    cup_scope_open(c);
    cup_status status = give_results(c, walk, number);
    if (status == CUP_OK)
        status = step_back(c, walk, c->tape->nodes[number - 1], &waits);
    cup__scope_pop(c);
    if (status == CUP_OK && waits)
        put_off(c, walk, number);
    return status == CUP_OK && c->tape->began ? catch_up(c, status) : status;
}

cup_status cup__tape_walk(cup_context *c, const cup__walk *walk, size_t last, size_t first)
{
    cup_status status = c->error.status;
    for (size_t n = last; n > first; n--) {
        cup__node *node = c->tape->nodes[n - 1];
        if (status == CUP_OK && is_reached(walk, node, n))
            status = step(c, walk, n);
        if (n == first + 1 || status != CUP_OK)
            status = catch_up(c, status);
        if (status == CUP_OK && walk->watch && !c->tape->later_count)
            status = walk->watch->passed((uint32_t)n, walk->watch->user);
        if (walk->keep)
            forget(node);
        else
            cup__tape_truncate(c, n - 1);
    }
    return status;
}
