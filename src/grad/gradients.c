/* Where backward begins and what it is asked for. */
#include "base/memory.h"
#include "grad/tape.h"
#include "dispatch/attributes.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

static cup_status check_start(cup_context *c, const char *verb, const cup_tensor *t)
{
    if (!t)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: the loss is NULL", verb);
    if (t->context != c)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: the loss belongs to another context", verb);
    if (!cup__usable(t, true, verb))
        return c->error.status;
    if (t->is_parameter)
        return CUP_OK;
    if (t->node && c->tape && t->generation != c->tape->generation)
        return cup__fail(&c->error, CUP_STATE,
                         "%s: what was recorded of the loss is gone since an earlier "
                         "cup_backward, cup_tape_clear or the end of the outermost scope; compute "
                         "the loss again, or keep what is recorded with cup_tape_keep",
                         verb);
    if (!t->node || !c->tape)
        return cup__fail(&c->error, CUP_STATE,
                         "%s: the loss depends on no parameter that was recorded; mark "
                         "parameters with cup_require_grad before computing it",
                         verb);
    return CUP_OK;
}

/* `otherwise` is what can be done besides where a loss has several elements. */
static cup_status check_gradient(cup_context *c, const char *verb, const cup_tensor *t,
                                 const cup_tensor *gradient, const char *otherwise)
{
    char text[CUP__SHAPE_TEXT], other[CUP__SHAPE_TEXT];
    if (!gradient && t->count != 1)
        return cup__fail(&c->error, CUP_SHAPE,
                         "%s of %s: the loss must have one element; take its sum or mean, or %s",
                         verb, cup__tensor_text(t, text), otherwise);
    if (!gradient)
        return CUP_OK;
    if (gradient->context != c)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: a gradient belongs to another context",
                         verb);
    if (!cup__usable(gradient, true, verb))
        return c->error.status;
    cup__shape is = cup__shape_of(t), given = cup__shape_of(gradient);
    if (!cup__shape_equal(&is, &given) || is.dtype != given.dtype)
        return cup__fail(&c->error, CUP_SHAPE,
                         "%s of %s: its gradient cannot be %s; give one of its shape and dtype",
                         verb, cup__tensor_text(t, text), cup__tensor_text(gradient, other));
    return CUP_OK;
}

static cup_status begin_at(cup_context *c, const cup__walk *walk, cup_tensor *t,
                           cup_tensor *gradient)
{
    cup__shape shape = cup__shape_of(t);
    if (!gradient)
        gradient = cup__full(c, &shape, 1);
    if (!gradient)
        return c->error.status;
    if (!t->is_parameter)
        return cup__grad_add(c, &c->tape->nodes[t->node - 1]->d_out[t->output], gradient);
    cup_tensor **end = cup__walk_end(walk, t), *own = end ? cup_copy(c, gradient) : NULL;
    return own ? cup__grad_give(c, end, own) : c->error.status;
}

/* Walks from the tensors, which were checked, with recording off but of gradients that are to be
 * differentiated themselves; drops what is not kept. */
static cup_status run(cup_context *c, cup__walk *walk, cup_tensor *const *tensors,
                      cup_tensor *const *gradients, int count)
{
    bool was = cup_grad_recording(c, c->twice);
    size_t last = 0;
    for (int i = 0; i < count; i++)
        if (!tensors[i]->is_parameter && tensors[i]->node > last)
            last = tensors[i]->node;
    walk->keep = c->tape->keep || c->twice;
    if (!walk->keep)
        cup__tape_truncate(c, last);
    c->tape->walking = true;
    cup_scope_open(c);
    cup_status status = c->error.status;
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = begin_at(c, walk, tensors[i], gradients ? gradients[i] : NULL);
    cup__scope_pop(c);
    status = cup__tape_walk(c, walk, last, 0);
    if (status == CUP_OK)
        status = cup__coming_end_all(c);
    c->tape->walking = false;
    if (!walk->keep)
        cup__tape_drop(c);
    cup_grad_recording(c, was);
    return status;
}

cup_status cup__backward(cup_context *c, cup_tensor *loss, cup_tensor *slope)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (loss && loss->context == c && !cup__usable(loss, true, "backward"))
        return c->error.status;
    if (loss && loss->context == c)
        CUP_TRY(check_gradient(c, "backward", loss, slope,
                               "give its gradient to cup_backward_from"));
    CUP_TRY(check_start(c, "backward", loss));
    CUP_TRY(cup__tape_free_to(c, "cup_backward", !c->tape->keep));
    const cup__grad_watch *watch;
    CUP_TRY(cup__tape_watched(c, &watch));
    return run(c, &(cup__walk){.watch = watch}, &loss, slope ? &slope : NULL, 1);
}

cup_status cup_backward(cup_context *c, cup_tensor *loss)
{
    return cup__backward(c, loss, NULL);
}

cup_status cup_backward_from(cup_context *c, cup_tensor *const *tensors,
                             cup_tensor *const *gradients, int count)
{
    static const char verb[] = "backward_from";
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!tensors || count < 1)
        return cup__fail(&c->error, CUP_ARGUMENT, "%s: there is no tensor to begin at", verb);
    for (int i = 0; i < count; i++) {
        CUP_TRY(check_start(c, verb, tensors[i]));
        CUP_TRY(check_gradient(c, verb, tensors[i], gradients ? gradients[i] : NULL,
                               "give its gradient, a tensor of its shape"));
    }
    CUP_TRY(cup__tape_free_to(c, "cup_backward_from", !c->tape->keep));
    const cup__grad_watch *watch;
    CUP_TRY(cup__tape_watched(c, &watch));
    return run(c, &(cup__walk){.watch = watch}, tensors, gradients, count);
}

static cup_status check_inputs(cup_context *c, cup_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        const cup_tensor *t = inputs[i];
        if (!t || t->context != c)
            return cup__fail(&c->error, CUP_ARGUMENT, "gradients: input %d %s", i + 1,
                             t ? "belongs to another context" : "is NULL");
        if (!cup__leads_to_parameter(c, t))
            return cup__fail(&c->error, CUP_STATE,
                             "gradients: input %d was not recorded; mark it with cup_require_grad "
                             "before the loss is computed from it",
                             i + 1);
        for (int j = 0; j < i; j++)
            if (inputs[j] == t)
                return cup__fail(&c->error, CUP_ARGUMENT,
                                 "gradients: inputs %d and %d are one tensor", j + 1, i + 1);
    }
    return CUP_OK;
}

static bool is_input(cup_tensor *const *inputs, int count, const cup__edge *edge)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] == edge->parameter)
            return true;
    return false;
}

/* Marks the nodes of which an input is a result or from which a path leads to an input. What is
 * used inside recomputed blocks is known to nobody: where there is one, all are needed. */
static const bool *find_needed(const cup__tape *tape, cup_tensor *const *inputs, int count,
                               size_t last, bool *needed)
{
    for (int i = 0; i < count; i++)
        if (!inputs[i]->is_parameter && inputs[i]->node <= last)
            needed[inputs[i]->node - 1] = true;
    for (size_t n = 0; n < last; n++) {
        const cup__node *node = tape->nodes[n];
        if (cup__node_is_block(node))
            return NULL;
        for (int i = 0; i < node->in_count && !needed[n]; i++) {
            const cup__edge *edge = &node->edges[i];
            needed[n] = edge->parameter ? is_input(inputs, count, edge)
                                        : edge->node && needed[edge->node - 1];
        }
    }
    return needed;
}

static cup_status find_gradients(cup_context *c, cup_tensor *loss, cup_tensor *const *inputs,
                                 int count, cup_tensor **out)
{
    static const char verb[] = "gradients";
    for (int i = 0; i < count && out; i++)
        out[i] = NULL;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!inputs || !out || count < 1)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "gradients: the inputs and a place for their gradients must be given");
    CUP_TRY(check_start(c, verb, loss));
    CUP_TRY(check_gradient(c, verb, loss, NULL,
                           "the sum of its product with the gradient it has"));
    CUP_TRY(check_inputs(c, inputs, count));
    CUP_TRY(cup__tape_free_to(c, "cup_gradients", !c->tape->keep && !c->twice));
    size_t last = loss->is_parameter ? 0 : loss->node;
    bool *needed = cup__calloc(last, sizeof *needed);
    if (!needed)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    cup__walk walk = {.inputs = inputs, .out = out, .count = count, .only = true};
    walk.needed = find_needed(c->tape, inputs, count, last, needed);
    cup_status status = run(c, &walk, &loss, NULL, 1);
    cup__free(needed);
    for (int i = 0; i < count; i++) {
        if (out[i] && status == CUP_OK)
            cup__tensor_adopt(out[i]);
        else if (out[i])
            cup__tensor_release(out[i]);
        out[i] = status == CUP_OK ? out[i] : NULL;
    }
    return status;
}

cup_status cup_gradients(cup_context *c, cup_tensor *loss, cup_tensor *const *inputs, int count,
                         cup_tensor **out)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    return find_gradients(c, loss, inputs, count, out);
}

cup_status cup_gradients_recorded(cup_context *c, cup_tensor *loss, cup_tensor *const *inputs,
                                  int count, cup_tensor **out)
{
    if (!c)
        return CUP_MEMORY;
    CUP__DEBUG_CALL(c);
    c->twice = true;
    cup_status status = find_gradients(c, loss, inputs, count, out);
    c->twice = false;
    return status;
}
