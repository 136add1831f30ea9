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

/* What gradient_of works with, for each input or for each value of a node. */
typedef struct workings {
    cup_tensor **values, **pre, **sum;
    cup__shape *shapes;
    bool *wanted;
} workings;

static bool workings_make(workings *w, const cup__node *node)
{
    size_t values = (size_t)(node->in_count + node->out_count), count = (size_t)node->in_count;
    *w = (workings){
        .values = cup__calloc(values, sizeof *w->values),
        .pre = cup__calloc(count, sizeof *w->pre),
        .sum = cup__calloc(count, sizeof *w->sum),
        .shapes = cup__calloc(values, sizeof *w->shapes),
        .wanted = cup__calloc(count, sizeof *w->wanted),
    };
    return w->values && w->pre && w->sum && w->shapes && w->wanted;
}

static void workings_free(workings *w)
{
    cup__free(w->values);
    cup__free(w->pre);
    cup__free(w->sum);
    cup__free(w->shapes);
    cup__free(w->wanted);
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
            bool keeps = from->row == &cup__rows[CUP__OP_linear_gelu] ||
                         from->row == &cup__rows[CUP__OP_linear_swiglu];
            if (keeps && edge->output == 0)
                w->pre[i] = from->out[1].tensor;
        }
        w->sum[i] = sum && is_ours_alone(sum) ? sum : NULL;
    }
}

static cup_status gradient_of(cup_context *c, cup__node *node, cup_tensor **d_in,
                              cup_tensor **d_pre)
{
    workings w;
    cup_status status = CUP_MEMORY;
    if (!workings_make(&w, node)) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    } else {
        look_around(c, node, &w);
        cup__grad g = {
            .c = c,
            .row = node->row,
            .attributes = node->attributes,
            .in_count = node->in_count,
            .out_count = node->out_count,
            .in = w.values,
            .out = w.values + node->in_count,
            .in_shape = w.shapes,
            .out_shape = w.shapes + node->in_count,
            .wanted = w.wanted,
            .d_out = node->d_out,
            .d_in = d_in,
            .pre = w.pre,
            .d_pre = d_pre,
            .sum = w.sum,
            .sequence = node->sequence,
        };
        status = node->row->op->gradient(&g);
    }
    workings_free(&w);
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
    size_t count = (size_t)node->in_count;
    cup_tensor **d_in = cup__calloc(2 * count, sizeof *d_in);
    if (!d_in)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    cup_tensor **d_pre = d_in + count;
    cup_status status = node->row ? gradient_of(c, node, d_in, d_pre)
                                  : cup__recompute_backward(c, node, d_in);
    for (int i = 0; i < node->in_count && status == CUP_OK; i++) {
        const cup__edge *edge = &node->edges[i];
        status = deliver(c, edge, edge->output, d_in[i]);
        if (status == CUP_OK)
            status = deliver(c, edge, 1, d_pre[i]);
    }
    cup__free(d_in);
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
