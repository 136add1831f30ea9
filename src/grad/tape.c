/* The tape: what was computed, in order, as nodes that backward walks from the end. */
#include "grad/tape.h"

#include <string.h>

#include "base/memory.h"
#include "tensor/debug.h"

/* Where the gradient of a node's input goes. */
static cup__edge edge_to(cup_context *c, cup_tensor *t)
{
    cup__edge edge = {0};
    if (!t || !cup__leads_to_parameter(c, t))
        return edge;
    if (t->is_parameter) {
        cup__tensor_retain(t);
        edge.parameter = t;
    } else {
        edge.node = t->node;
        edge.output = t->output;
    }
    return edge;
}

bool cup__leads_to_parameter(cup_context *c, const cup_tensor *t)
{
    return t->is_parameter || (t->node && c->tape && t->generation == c->tape->generation);
}

static bool wants(cup_context *c, cup_tensor *const *in, int in_count)
{
    if (!c->recording) {
        if (c->tape && c->tape->inside)
            cup__tape_use(c->tape->inside, in, in_count);
        return false;
    }
    for (int i = 0; i < in_count; i++)
        if (in[i] && cup__leads_to_parameter(c, in[i]))
            return true;
    return false;
}

static void keep_value(cup__saved *saved, cup_tensor *t, bool wanted)
{
    if (!t)
        return;
    saved->shape = cup__shape_of(t);
    if (!wanted)
        return;
    cup__tensor_retain(t);
    saved->tensor = t;
    saved->version = t->storage->version;
}

cup__node *cup__tape_node(cup_context *c, int in_count, int out_count, size_t attributes_size)
{
    cup__tape *tape = c->tape;
    if (!cup__grow(&tape->nodes, &tape->capacity, tape->count, sizeof *tape->nodes))
        goto no_memory;
    size_t values = (size_t)(in_count + out_count);
    size_t size = sizeof(cup__node) + values * sizeof(cup__saved) +
                  (size_t)in_count * sizeof(cup__edge) +
                  2 * (size_t)out_count * sizeof(cup_tensor *) + attributes_size;
    cup__node *node = cup__calloc(1, size);
    if (!node)
        goto no_memory;
    node->in = (cup__saved *)(node + 1);
    node->out = node->in + in_count;
    node->edges = (cup__edge *)(node->out + out_count);
    node->d_out = (cup_tensor **)(node->edges + in_count);
    node->retained = node->d_out + out_count;
    node->attributes = node->retained + out_count;
    node->in_count = in_count;
    node->out_count = out_count;
    tape->nodes[tape->count++] = node;
    return node;
no_memory:
    cup__fail(&c->error, CUP_MEMORY, "out of host memory for the tape");
    return NULL;
}

void cup__tape_link(cup_context *c, cup__node *node, int i, cup_tensor *t)
{
    node->edges[i] = edge_to(c, t);
}

void cup__tape_mark(cup_context *c, cup_tensor *t, int output)
{
    t->node = (uint32_t)c->tape->count;
    t->generation = c->tape->generation;
    t->output = output;
}

static bool may_be_made_again(const cup__tape *tape, const cup__op *op)
{
    return op->again && (tape->again == CUP_RECOMPUTE_POLICY_POINTWISE ||
                         (tape->again == CUP_RECOMPUTE_POLICY_NORMS && op->is_norm));
}

bool cup__tape_makes_again(const cup_context *c, const cup_tensor *t)
{
    bool made = t && !t->is_parameter && t->node && t->generation == c->tape->generation;
    if (!made || t->output > 0)
        return false;
    const cup__node *maker = c->tape->nodes[t->node - 1];
    return maker->makes_again && (c->tape->again || maker->custom);
}

static void keep_input(cup__call *call, cup__node *node, int i, bool wanted)
{
    bool again = wanted && !cup__call_changes(call, i) &&
                 cup__tape_makes_again(call->c, call->in[i]);
    keep_value(&node->in[i], call->in[i], wanted && !again);
    if (again)
        node->in[i].maker = call->in[i]->node;
}

static cup_status record(cup__call *call)
{
    size_t size = call->row->attributes_size;
    cup__node *node = cup__tape_node(call->c, call->in_count, call->out_count, size);
    if (!node)
        return CUP_MEMORY;
    node->row = call->row;
    node->sequence = call->sequence;
    node->share = call->share;
    if (size)
        memcpy(node->attributes, call->attributes, size);
    node->makes_again = may_be_made_again(call->c->tape, call->op) &&
                        call->in_count + call->out_count <= CUP__AGAIN_MOST;
    uint32_t saves = call->op->saves | (node->makes_again ? call->op->again_saves : 0);
    for (int i = 0; i < call->in_count; i++) {
        keep_input(call, node, i, i < 16 && (saves & CUP__SAVE_IN(i)));
        cup__tape_link(call->c, node, i, call->in[i]);
    }
    for (int i = 0; i < call->out_count; i++) {
        keep_value(&node->out[i], call->out[i], saves & CUP__SAVE_OUT(i));
        cup__tape_mark(call->c, call->out[i], i);
        /* The memory of a view is that of its base, which may be a parameter. */
        if (!call->op->view)
            call->out[i]->storage->recorded = call->c->tape->generation;
    }
    return CUP_OK;
}

static bool holds(const cup_tensor *t)
{
    const cup__tape *tape = t->context->tape;
    return tape && ((t->node && t->generation == tape->generation) ||
                    t->storage->recorded == tape->generation);
}

void cup__node_free(cup__node *node)
{
    if (!node)
        return;
    for (int i = 0; i < node->in_count; i++) {
        cup__tensor_release(node->in[i].tensor);
        cup__tensor_release(node->edges[i].parameter);
    }
    for (int i = 0; i < node->out_count; i++) {
        cup__tensor_release(node->out[i].tensor);
        cup__tensor_release(node->d_out[i]);
        cup__tensor_release(node->retained[i]);
    }
    cup__tensor_release(node->again);
    cup__uses_free(node->uses);
    cup__free(node);
}

static void truncate(cup__tape *tape, size_t count)
{
    while (tape->count > count)
        cup__node_free(tape->nodes[--tape->count]);
}

void cup__tape_truncate(cup_context *c, size_t count)
{
    truncate(c->tape, count);
}

void cup__tape_drop(cup_context *c)
{
    cup__tape_truncate(c, 0);
    c->tape->generation++;
    c->tape->hides = c->tape->began = false;
}

cup_status cup__tape_free_to(cup_context *c, const char *verb, bool drops)
{
    if (c->tape && c->tape->walking)
        return cup__fail(&c->error, CUP_STATE,
                         "%s: it was called by an op or a block of yours while backward goes "
                         "through it; compute what it needs in forward, or of recorded ops, see "
                         "cup_gradients_recorded",
                         verb);
    if (c->tape && c->lent && drops)
        return cup__fail(&c->error, CUP_STATE,
                         "%s: an op or a block of yours that calls it would drop what was recorded "
                         "before; call it outside, or keep what is recorded with cup_tape_keep",
                         verb);
    return CUP_OK;
}

void cup_tape_clear(cup_context *c)
{
    if (!c || !c->tape)
        return;
    CUP__DEBUG_CALL(c);
    if (cup__tape_free_to(c, "cup_tape_clear", true) == CUP_OK)
        cup__tape_drop(c);
}

void cup__tape_free(cup__tape *tape)
{
    if (!tape)
        return;
    truncate(tape, 0);
    cup__free(tape->nodes);
    cup__free(tape);
}

static void tape_free(cup_context *c)
{
    cup__tape_free(c->tape);
    c->tape = NULL;
}

static const cup__tape_calls calls = {
    .wants = wants,
    .record = record,
    .holds = holds,
    .clear = cup_tape_clear,
    .free = tape_free,
};

cup__tape *cup__tape_make(cup_context *c)
{
    if (c->tape)
        return c->tape;
    c->tape = cup__tape_new(c, 0);
    if (c->tape)
        c->tape_calls = &calls;
    return c->tape;
}

/* Far from each other, so that results of one tape are not taken for another's. */
#define GENERATIONS ((uint32_t)1 << 24)

cup__tape *cup__tape_new(cup_context *c, int number)
{
    cup__tape *tape = cup__calloc(1, sizeof *tape);
    if (!tape) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for the tape");
        return NULL;
    }
    tape->generation = 1 + (uint32_t)number * GENERATIONS;
    return tape;
}

cup__tape *cup__tape_exchange(cup_context *c, cup__tape *other)
{
    cup__tape *was = c->tape;
    c->tape = other;
    return was;
}

static bool is_recorded(const cup_tensor *t)
{
    const cup__tape *tape = t->context->tape;
    return tape && t->node && t->generation == tape->generation;
}

cup_tensor *cup_require_grad(cup_tensor *t)
{
    if (!cup__usable(t, true, "cup_require_grad"))
        return NULL;
    cup_context *c = t->context;
    char text[CUP__SHAPE_TEXT];
    if (!cup__tape_make(c))
        return NULL;
    bool bad_dtype = !cup__dtype_is_float(t->dtype);
    if (bad_dtype || is_recorded(t)) {
        cup__fail(&c->error, bad_dtype ? CUP_DTYPE : CUP_STATE,
                  "%s cannot be a parameter: %s", cup__tensor_text(t, text),
                  bad_dtype ? "only floating-point tensors have gradients"
                            : "it is a recorded result; its gradient follows from its inputs, and "
                              "cup_retain_grad keeps it");
        return NULL;
    }
    t->is_parameter = true;
    return t;
}

cup_tensor *cup_retain_grad(cup_tensor *t)
{
    if (!cup__usable(t, true, "cup_retain_grad"))
        return NULL;
    if (t->is_parameter)
        return t;
    char text[CUP__SHAPE_TEXT];
    if (!is_recorded(t)) {
        cup__fail(&t->context->error, CUP_STATE,
                  "retain_grad of %s: it is no recorded result that backward would reach; mark "
                  "what it is computed from with cup_require_grad before, or itself",
                  cup__tensor_text(t, text));
        return NULL;
    }
    cup_tensor **retained = &t->context->tape->nodes[t->node - 1]->retained[t->output];
    if (!*retained) {
        cup__tensor_retain(t);
        *retained = t;
    }
    return t;
}

cup_tensor *cup_detach(cup_tensor *t)
{
    return cup__usable(t, true, "cup_detach") ? cup__detached(t) : NULL;
}

bool cup_tape_keep(cup_context *c, bool on)
{
    if (!c || !cup__tape_make(c))
        return false;
    bool was = c->tape->keep;
    c->tape->keep = on;
    return was;
}

cup_tensor *cup_grad(cup_tensor *t)
{
    return cup__usable(t, false, "cup_grad") ? t->grad : NULL;
}

void cup_grad_clear(cup_tensor *t)
{
    if (!cup__usable(t, false, "cup_grad_clear"))
        return;
    cup_tensor_free(t->grad);
    t->grad = NULL;
}

bool cup_grad_recording(cup_context *c, bool on)
{
    if (!c)
        return false;
    bool was = c->recording;
    c->recording = on;
    return was;
}
