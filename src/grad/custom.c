/* Ops of the user's own, recorded as one node with a gradient of the user's own. */
#include <stdalign.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "grad/tape.h"
#include "dispatch/attributes.h"
#include "tensor/coming.h"

/* One bit of `saves_inputs` and `saves_outputs` each. */
#define MOST 32

static cup_status take_op(cup_context *c, const cup_custom_op *from, cup_custom_op *op)
{
    if (!from)
        return cup__fail(&c->error, CUP_ARGUMENT, "custom: the op is NULL");
    CUP_TRY(cup__options_take(&c->error, "custom", op, sizeof *op, from));
    if (!op->name || !op->forward)
        return cup__fail(&c->error, CUP_ARGUMENT, "custom %s: its %s is NULL",
                         op->name ? op->name : "op", op->name ? "forward" : "name");
    if (op->output_count < 1 || op->output_count > MOST)
        return cup__fail(&c->error, CUP_ARGUMENT, "custom %s: it has %d outputs, 1 to %d are "
                         "possible",
                         op->name, op->output_count, MOST);
    return CUP_OK;
}

static cup_status check_call(cup_context *c, const cup_custom_op *op, cup_tensor *const *inputs,
                             int count, const void *attributes)
{
    if (count < 0 || count > MOST || (count > 0 && !inputs))
        return cup__fail(&c->error, CUP_ARGUMENT, "custom %s: %d inputs%s, 0 to %d are possible",
                         op->name, count, inputs ? "" : ", the list of which is NULL", MOST);
    if (op->attributes_size && !attributes)
        return cup__fail(&c->error, CUP_ARGUMENT, "custom %s: its attributes are NULL", op->name);
    for (int i = 0; i < count; i++)
        if (inputs[i] && inputs[i]->context != c)
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "custom %s: input %d belongs to another context; copy it with "
                             "cup_tensor_to",
                             op->name, i + 1);
    return CUP_OK;
}

/* What a callback says, or what went wrong meanwhile without its saying so. */
static cup_status said(cup_context *c, const cup_custom_op *op, const char *which,
                       cup_status status)
{
    if (c->error.status == CUP_OK && status != CUP_OK)
        cup__fail(&c->error, status, "custom %s: its %s failed", op->name, which);
    return c->error.status;
}

static cup_status check_outputs(cup_context *c, const cup_custom_op *op, cup_tensor **outputs)
{
    for (int i = 0; i < op->output_count; i++) {
        const cup_tensor *t = outputs[i];
        bool made = t && t->context == c && t->scope == (int)c->depth - 1 && !t->is_parameter;
        for (int j = 0; j < i; j++)
            made &= outputs[j] != t;
        if (!made)
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "custom %s: output %d %s", op->name, i + 1,
                             t ? "must be a tensor of its own that forward made, neither an input, "
                                 "nor kept, nor a parameter; return a cup_copy"
                               : "was not set by its forward");
    }
    return CUP_OK;
}

static void enter(cup_context *c, cup__callback *callback)
{
    cup__callback_begin(c, callback);
    c->lent++;
}

/* Ends a callback, which said `status`. */
static cup_status leave(cup_context *c, const cup_custom_op *op, const char *which,
                        const cup__callback *callback, cup_status status)
{
    status = said(c, op, which, status);
    if (status == CUP_OK && !cup__callback_is_even(c, callback))
        status = cup__fail(&c->error, CUP_STATE,
                           "custom %s: its %s must close the scopes it opens, and no other",
                           op->name, which);
    cup__callback_end(c, callback);
    c->lent--;
    return status;
}

static cup_status run_forward(cup_context *c, const cup_custom_op *op, cup_tensor *const *inputs,
                              int count, const void *attributes, cup_tensor **outputs)
{
    cup__callback callback;
    cup_scope_open(c);
    bool was = cup_grad_recording(c, false);
    cup_status status = c->error.status;
    enter(c, &callback);
    if (status == CUP_OK)
        status = op->forward(c, inputs, count, attributes, outputs);
    status = leave(c, op, "forward", &callback, status);
    cup_grad_recording(c, was);
    if (status == CUP_OK)
        status = check_outputs(c, op, outputs);
    for (int i = 0; i < op->output_count && status == CUP_OK; i++)
        cup__tensor_hand_out(outputs[i]);
    cup__scope_pop(c);
    return status;
}

static void keep(cup__saved *saved, cup_tensor *t, bool wanted)
{
    saved->shape = cup__shape_of(t);
    saved->version = t->storage->version;
    if (wanted && cup__tape_makes_again(t->context, t)) {
        saved->maker = t->node;
    } else if (wanted) {
        cup__tensor_retain(t);
        saved->tensor = t;
    }
}

/* Whether it is a view of what an input lies in, which may be changed in place if that may. */
static bool is_view_of_input(const cup_tensor *t, cup_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] && inputs[i]->storage == t->storage)
            return true;
    return false;
}

static cup_status record(cup_context *c, const cup_custom_op *op, cup_tensor *const *inputs,
                         int count, const void *attributes, cup_tensor **outputs)
{
    const size_t size = (op->attributes_size + alignof(cup_custom_op) - 1) /
                        alignof(cup_custom_op) * alignof(cup_custom_op);
    cup__node *node = cup__tape_node(c, count, op->output_count, size + sizeof *op);
    if (!node)
        return CUP_MEMORY;
    if (op->attributes_size)
        memcpy(node->attributes, attributes, op->attributes_size);
    node->custom = memcpy((char *)node->attributes + size, op, sizeof *op);
    node->makes_again = op->again && c->tape->blocks == 0 && count <= CUP__AGAIN_MOST &&
                        !(op->saves_outputs & 1);
    for (int i = 0; i < count; i++) {
        if (!inputs[i])
            continue;
        keep(&node->in[i], inputs[i], op->saves_inputs >> i & 1);
        cup__tape_link(c, node, i, inputs[i]);
    }
    for (int i = 0; i < op->output_count; i++) {
        keep(&node->out[i], outputs[i], op->saves_outputs >> i & 1);
        cup__tape_mark(c, outputs[i], i);
        if (!is_view_of_input(outputs[i], inputs, count))
            outputs[i]->storage->recorded = c->tape->generation;
    }
    return CUP_OK;
}

cup_status cup_custom(cup_context *c, const cup_custom_op *from, cup_tensor *const *inputs,
                      int count, const void *attributes, cup_tensor **outputs)
{
    cup_custom_op own, *const op = &own;
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    CUP_TRY(take_op(c, from, op));
    if (!outputs)
        return cup__fail(&c->error, CUP_ARGUMENT, "custom %s: there is no place for its outputs",
                         op->name);
    memset(outputs, 0, sizeof *outputs * (size_t)op->output_count);
    CUP_TRY(check_call(c, op, inputs, count, attributes));
    CUP_TRY(cup__coming_end_of(c, inputs, count));
    bool wanted = c->tape_calls && c->tape_calls->wants(c, inputs, count);
    if (wanted && !op->backward)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "custom %s: it has no backward, and an input leads to a parameter; switch "
                         "recording off around it with cup_grad_recording",
                         op->name);
    cup_status status = run_forward(c, op, inputs, count, attributes, outputs);
    if (status == CUP_OK && wanted)
        status = record(c, op, inputs, count, attributes, outputs);
    if (status != CUP_OK)
        memset(outputs, 0, sizeof *outputs * (size_t)op->output_count);
    return status;
}

cup_tensor *cup__custom_again(cup_context *c, const cup__node *node, cup_tensor *const *inputs)
{
    const cup_custom_op *op = node->custom;
    const cup_custom_grad g = {.inputs = inputs,
                               .input_count = node->in_count,
                               .output_count = node->out_count,
                               .attributes = node->attributes};
    cup__callback callback;
    cup_scope_open(c);
    enter(c, &callback);
    cup_tensor *y = op->again(c, &g);
    if (leave(c, op, "again", &callback, y ? CUP_OK : CUP_STATE) == CUP_OK) {
        cup__shape shape = cup__shape_of(y);
        bool made = y->context == c && y->scope == (int)c->depth - 1;
        if (!made || y->dtype != node->out->shape.dtype ||
            !cup__shape_equal(&shape, &node->out->shape))
            cup__fail(&c->error, CUP_SHAPE,
                      "custom %s: its again gives no new tensor of the shape and dtype of its "
                      "first output",
                      op->name);
    }
    return cup_scope_return(c, c->error.status == CUP_OK ? y : NULL);
}

static bool came_in(const cup_custom_grad *g, const cup_tensor *d)
{
    for (int i = 0; i < g->output_count; i++)
        if (g->d_outputs[i] == d)
            return true;
    return false;
}

cup_status cup__custom_backward(cup_context *c, const cup__node *node, const cup_custom_grad *g)
{
    const cup_custom_op *op = node->custom;
    cup__callback callback;
    CUP_TRY(cup__coming_end_of(c, g->d_outputs, g->output_count));
    char is[CUP__SHAPE_TEXT], should[CUP__SHAPE_TEXT];
    enter(c, &callback);
    CUP_TRY(leave(c, op, "backward", &callback, op->backward(c, g)));
    for (int i = 0; i < g->input_count; i++) {
        const cup_tensor *d = g->d_inputs[i];
        if (!d || !g->wanted[i])
            continue;
        cup__shape shape = cup__shape_of(d);
        if (d->context != c || d->dtype != node->in[i].shape.dtype ||
            !cup__shape_equal(&shape, &node->in[i].shape))
            return cup__fail(&c->error, CUP_SHAPE,
                             "custom %s: the gradient of input %d is %s%s and should be %s",
                             op->name, i + 1, cup__tensor_text(d, is),
                             d->context != c ? " of another context" : "",
                             cup__shape_text(&node->in[i].shape, should));
        /* What the user goes on owning may be changed before the gradient is used. */
        if (d->scope != (int)c->depth - 1 && !came_in(g, d))
            g->d_inputs[i] = cup_copy(c, g->d_inputs[i]);
    }
    return c->error.status;
}
