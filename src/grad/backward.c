/* Backward: walks the tape from the loss and hands gradients on until they reach parameters. */
#include <string.h>

#include "base/memory.h"
#include "grad/tape.h"
#include "dispatch/attributes.h"

/* Gradients on their way are shared by reference and only added to in place when nothing else
 * sees their memory. */
static bool is_ours_alone(const cup_tensor *d)
{
    return d->refs == 1 && d->storage->refs == 1 && d->contiguous;
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

/* A parameter's gradient is the caller's, to read and to change: it shares memory with nothing. */
static cup_status add_to_parameter(cup_context *c, cup_tensor *parameter, cup_tensor *d)
{
    if (!parameter->grad && !(is_ours_alone(d) && d->scope >= 0))
        d = cup_copy(c, d);
    return d ? cup__grad_add(c, &parameter->grad, d) : c->error.status;
}

static cup_status check_saved(cup_context *c, const cup__node *node)
{
    for (int i = 0; i < node->in_count + node->out_count; i++) {
        const cup__saved *saved = &node->in[i];
        if (saved->tensor && saved->tensor->storage->version != saved->version)
            return cup__fail(&c->error, CUP_STATE,
                             "backward of %s: a value it needs was changed in place after it was "
                             "computed; change parameters only after cup_backward",
                             node->row ? node->row->name : "a recomputed block");
    }
    return CUP_OK;
}

/* What the gradient of one node works with, in one block of memory. */
typedef struct workings {
    cup_tensor **d_in, **d_pre, **pre, **sum; /* for each input */
    cup__past *past;
    cup_tensor **values; /* for each input and each result */
    cup__shape *shapes;
    bool *wanted;
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
    return true;
}

static void look_around(cup_context *c, const cup__node *node, workings *w)
{
    for (int i = 0; i < node->in_count + node->out_count; i++) {
        w->values[i] = node->in[i].tensor;
        w->shapes[i] = node->in[i].shape;
    }
    for (int i = 0; i < node->in_count; i++) {
        const cup__edge *edge = &node->edges[i];
        w->wanted[i] = edge->parameter || edge->node;
        cup_tensor *sum = edge->parameter ? edge->parameter->grad : NULL;
        if (edge->node) {
            const cup__node *from = c->tape->nodes[edge->node - 1];
            sum = from->d_out[edge->output];
            if (from->row && from->row->op->past && edge->output == 0) {
                w->pre[i] = from->out[1].tensor;
                w->past[i] = from->row->op->past;
            }
        }
        w->sum[i] = sum && is_ours_alone(sum) ? sum : NULL;
    }
}

static cup_status gradient_of(cup_context *c, const cup__node *node, workings *w)
{
    look_around(c, node, w);
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
        .sequence = node->sequence,
    };
    cup_status status = node->row->op->gradient(&g);
    return status == CUP_OK ? c->error.status : status;
}

static cup_status deliver(cup_context *c, const cup__edge *edge, int output, cup_tensor *d)
{
    if (!d || !(edge->parameter || edge->node))
        return CUP_OK;
    if (edge->parameter)
        return add_to_parameter(c, edge->parameter, d);
    cup__node *target = c->tape->nodes[edge->node - 1];
    return cup__grad_add(c, &target->d_out[output], d);
}

static cup_status step_back(cup_context *c, cup__node *node)
{
    CUP_TRY(check_saved(c, node));
    workings w;
    if (!workings_make(&w, node))
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    cup_status status = node->row ? gradient_of(c, node, &w)
                                  : cup__recompute_backward(c, node, w.d_in);
    for (int i = 0; i < node->in_count && status == CUP_OK; i++) {
        const cup__edge *edge = &node->edges[i];
        status = deliver(c, edge, edge->output, w.d_in[i]);
        if (status == CUP_OK)
            status = deliver(c, edge, 1, w.d_pre[i]);
    }
    cup__free(w.shapes);
    return status;
}

cup_status cup__tape_walk(cup_context *c, size_t first)
{
    cup_status status = CUP_OK;
    while (c->tape->count > first && status == CUP_OK) {
        cup__node *node = c->tape->nodes[c->tape->count - 1];
        bool reached = false;
        for (int i = 0; i < node->out_count; i++)
            reached |= node->d_out[i] != NULL;
        if (reached) {
            cup_scope_open(c);
            status = step_back(c, node);
            cup__scope_pop(c);
        }
        cup__tape_truncate(c, c->tape->count - 1);
    }
    cup__tape_truncate(c, first);
    return status;
}

cup_status cup_backward(cup_context *c, cup_tensor *loss)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!loss)
        return cup__fail(&c->error, CUP_ARGUMENT, "backward: the loss is NULL");
    if (loss->context != c)
        return cup__fail(&c->error, CUP_ARGUMENT, "backward: the loss belongs to another context");
    char text[CUP__SHAPE_TEXT];
    if (loss->count != 1)
        return cup__fail(&c->error, CUP_SHAPE,
                         "backward of %s: the loss must have one element; take its sum or mean",
                         cup__tensor_text(loss, text));
    if (loss->node && c->tape && loss->generation != c->tape->generation)
        return cup__fail(&c->error, CUP_STATE,
                         "backward: what was recorded of the loss is gone since an earlier "
                         "cup_backward, cup_tape_clear or the end of the outermost scope; compute "
                         "the loss again");
    if (!loss->node || !c->tape)
        return cup__fail(&c->error, CUP_STATE,
                         "backward: the loss depends on no parameter that was recorded; mark "
                         "parameters with cup_require_grad before computing it");
    bool was = cup_grad_recording(c, false);
    cup__shape shape = cup__shape_of(loss);
    cup__tape_truncate(c, loss->node);
    cup_tensor *one = cup__full(c, &shape, 1);
    cup_status status = one ? cup__grad_add(c, &c->tape->nodes[loss->node - 1]->d_out[loss->output],
                                            one)
                            : c->error.status;
    if (status == CUP_OK)
        status = cup__tape_walk(c, 0);
    cup_tape_clear(c);
    cup_grad_recording(c, was);
    return status;
}
