/* What is not kept for backward but computed again: the inside of blocks, and what norms and
 * functions of each element give. */
#include "base/memory.h"
#include "grad/tape.h"
#include "tensor/coming.h"

#define OUTPUTS_MOST 8

/* A block that makes one tensor, or one that makes several. */
typedef struct inside {
    cup_block one;
    cup_blocks all;
    void *user;
} inside;

static cup_status call_block(cup_context *c, const inside *b, cup_tensor *const *inputs, int count,
                             cup_tensor **outputs, int output_count)
{
    cup__callback callback;
    for (int i = 0; i < output_count; i++)
        outputs[i] = NULL;
    cup__callback_begin(c, &callback);
    c->lent++;
    if (b->all)
        b->all(c, inputs, count, b->user, outputs);
    else
        outputs[0] = b->one(c, inputs, count, b->user);
    if (!cup__callback_is_even(c, &callback))
        cup__fail(&c->error, CUP_STATE,
                  "recompute: a block must close the scopes it opens, and no other");
    cup__callback_end(c, &callback);
    c->lent--;
    for (int i = 0; i < output_count && c->error.status == CUP_OK; i++)
        if (!outputs[i] && b->all)
            cup__fail(&c->error, CUP_STATE, "recompute: a block left its result %d of %d NULL", i,
                      output_count);
    return c->error.status;
}

static void keep_inputs(cup_context *c, cup__node *node, cup_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        if (!inputs[i])
            continue;
        cup__tensor_retain(inputs[i]);
        node->in[i] = (cup__saved){cup__shape_of(inputs[i]), inputs[i],
                                   inputs[i]->storage->version, 0};
        cup__tape_link(c, node, i, inputs[i]);
    }
}

static cup_status record(cup_context *c, const inside *b, cup_tensor *const *inputs, int count,
                         cup_tensor **outputs, int output_count)
{
    uint32_t sequence = c->random.sequence;
    cup__uses *uses = cup__calloc(1, sizeof *uses), *outer = c->tape->inside;
    c->tape->inside = uses;
    cup_grad_recording(c, false);
    cup_status status = call_block(c, b, inputs, count, outputs, output_count);
    cup_grad_recording(c, true);
    c->tape->inside = outer;
    bool made = status == CUP_OK && outputs[0];
    cup__node *node = made ? cup__tape_node(c, count, output_count, 0) : NULL;
    if (!node) {
        cup__uses_free(uses);
        return c->error.status;
    }
    node->uses = uses;
    node->block = b->one;
    node->blocks = b->all;
    node->block_user = b->user;
    node->sequence = sequence;
    keep_inputs(c, node, inputs, count);
    for (int i = 0; i < output_count; i++) {
        /* What was there before the block, as its input, goes on being what it was. */
        if (cup__leads_to_parameter(c, outputs[i]))
            outputs[i] = cup__detached(outputs[i]);
        if (!outputs[i])
            return c->error.status;
        node->out[i].shape = cup__shape_of(outputs[i]);
        cup__tape_mark(c, outputs[i], i);
        outputs[i]->storage->recorded = c->tape->generation;
    }
    return CUP_OK;
}

static cup_status recompute(cup_context *c, const inside *b, cup_tensor *const *inputs, int count,
                            cup_tensor **outputs, int output_count)
{
    CUP_TRY(cup__coming_end_of(c, inputs, count));
    cup_status status =
        c->tape && c->recording ? record(c, b, inputs, count, outputs, output_count)
                                : call_block(c, b, inputs, count, outputs, output_count);
    for (int i = 0; i < output_count && status != CUP_OK; i++)
        outputs[i] = NULL;
    return status;
}

static cup_status no_block(cup_context *c)
{
    return cup__fail(&c->error, CUP_ARGUMENT, "recompute: there is no block to compute");
}

cup_tensor *cup_recompute(cup_context *c, cup_block block, cup_tensor *const *inputs, int count,
                          void *user)
{
    cup_tensor *out = NULL;
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!block)
        no_block(c);
    else
        recompute(c, &(inside){.one = block, .user = user}, inputs, count, &out, 1);
    return out;
}

cup_status cup_recompute_all(cup_context *c, cup_blocks block, cup_tensor *const *inputs, int count,
                             void *user, cup_tensor **outputs, int output_count)
{
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!block)
        return no_block(c);
    if (!outputs || output_count < 1 || output_count > OUTPUTS_MOST)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "recompute: a block makes from 1 to %d tensors, not %d", OUTPUTS_MOST,
                         outputs ? output_count : 0);
    return recompute(c, &(inside){.all = block, .user = user}, inputs, count, outputs,
                     output_count);
}

/* What came back to the node goes on from what the block made now, or gave as it was; `reached`
 * says whether there are nodes on its way to a parameter. */
static cup_status hand_on(cup_context *c, const cup__walk *walk, const cup__node *node,
                          cup_tensor *const *made, bool *reached)
{
    *reached = false;
    for (int i = 0; i < node->out_count; i++) {
        cup_tensor *out = made[i], **slot;
        if (!node->d_out[i] || !out || !cup__leads_to_parameter(c, out))
            continue;
        if (out->is_parameter) {
            slot = cup__walk_end(walk, out);
            CUP_TRY(slot ? cup__grad_give(c, slot, node->d_out[i]) : CUP_OK);
            continue;
        }
        CUP_TRY(cup__grad_add(c, &c->tape->nodes[out->node - 1]->d_out[out->output],
                              node->d_out[i]));
        *reached = true;
    }
    return CUP_OK;
}

/* Stands in for an input: the same memory, but a leaf whose gradient can be read off. */
static cup_tensor *stand_in(cup_tensor *t, bool wanted)
{
    cup__shape shape = cup__shape_of(t);
    cup_tensor *leaf = cup__tensor_view(t, &shape, t->stride, 0);
    if (leaf)
        leaf->is_parameter = wanted;
    return leaf;
}

/* A block that makes something else when it runs again would give gradients of that. */
static cup_status check_same(cup_context *c, const cup__node *node, cup_tensor *const *made)
{
    char was[CUP__SHAPE_TEXT];
    for (int i = 0; i < node->out_count; i++) {
        cup__shape is = made[i] ? cup__shape_of(made[i]) : (cup__shape){0};
        if (!made[i] || is.dtype != node->out[i].shape.dtype ||
            !cup__shape_equal(&is, &node->out[i].shape))
            return cup__fail(&c->error, CUP_STATE,
                             "recompute: a block made %s first, and something else when backward "
                             "ran it again; it must make the same each time",
                             cup__shape_text(&node->out[i].shape, was));
    }
    return CUP_OK;
}

static cup_status call_again(cup_context *c, const cup__node *node, cup_tensor *const *inputs,
                             cup_tensor **made)
{
    const inside block = {node->block, node->blocks, node->block_user};
    uint32_t sequence = c->random.sequence;
    c->random.sequence = node->sequence;
    c->tape->blocks++;
    cup_status status = call_block(c, &block, inputs, node->in_count, made, node->out_count);
    c->tape->blocks--;
    c->random.sequence = sequence;
    return status == CUP_OK ? check_same(c, node, made) : status;
}

static cup_status run_again(cup_context *c, const cup__walk *outer, cup__node *node,
                            cup_tensor **leaves)
{
    size_t first = c->tape->count;
    cup_tensor *made[OUTPUTS_MOST];
    bool reached;
    cup_grad_recording(c, true);
    cup_status status = call_again(c, node, leaves, made);
    cup_grad_recording(c, false);
    CUP_TRY(status);
    const cup__walk walk = {.inputs = leaves, .count = node->in_count, .outer = outer};
    CUP_TRY(hand_on(c, &walk, node, made, &reached));
    return reached ? cup__tape_walk(c, &walk, c->tape->count, first) : CUP_OK;
}

/* Where gradients are recorded, the block is computed again from its inputs themselves, as if it
 * had never been one: what it records stays, and gradients go through that to what is before. */
static cup_status run_recorded(cup_context *c, const cup__walk *walk, cup__node *node)
{
    cup_tensor **inputs = cup__calloc((size_t)node->in_count, sizeof *inputs);
    cup_tensor *made[OUTPUTS_MOST];
    size_t first = c->tape->count;
    bool reached;
    if (!inputs)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    for (int i = 0; i < node->in_count; i++)
        inputs[i] = node->in[i].tensor;
    cup_status status = call_again(c, node, inputs, made);
    cup__free(inputs);
    CUP_TRY(status);
    CUP_TRY(hand_on(c, walk, node, made, &reached));
    return reached ? cup__tape_walk(c, walk, c->tape->count, first) : CUP_OK;
}

cup_status cup__recompute_backward(cup_context *c, const cup__walk *walk, cup__node *node,
                                   const bool *wanted, cup_tensor **d_in)
{
    if (c->twice)
        return run_recorded(c, walk, node);
    cup_tensor **leaves = cup__calloc((size_t)node->in_count, sizeof *leaves);
    if (!leaves)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    for (int i = 0; i < node->in_count; i++) {
        cup_tensor *in = node->in[i].tensor;
        leaves[i] = in ? stand_in(in, wanted[i]) : NULL;
    }
    size_t first = c->tape->count;
    cup_status status = run_again(c, walk, node, leaves);
    cup__tape_truncate(c, first);
    for (int i = 0; i < node->in_count && status == CUP_OK; i++)
        d_in[i] = leaves[i] ? leaves[i]->grad : NULL;
    cup__free(leaves);
    return status;
}

cup_recompute_policy cup_recompute_results(cup_context *c, cup_recompute_policy policy)
{
    if (!c)
        return CUP_RECOMPUTE_POLICY_NONE;
    if (policy != CUP_RECOMPUTE_POLICY_NONE && policy != CUP_RECOMPUTE_POLICY_NORMS &&
        policy != CUP_RECOMPUTE_POLICY_POINTWISE) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "recompute: of results the policy is NONE, NORMS or POINTWISE, not %d",
                  (int)policy);
        return CUP_RECOMPUTE_POLICY_NONE;
    }
    if (!cup__tape_make(c))
        return CUP_RECOMPUTE_POLICY_NONE;
    cup_recompute_policy was = c->tape->again;
    c->tape->again = policy;
    return was;
}

cup_tensor *cup__call_again(const cup__grad *g)
{
    return cup__op_call(g->c, g->row, g->in, g->in_count, g->attributes, NULL);
}

/* The values that a node has saved, some of which may have to be made again themselves. */
static cup_tensor *make_again(cup_context *c, const cup__node *node)
{
    cup_tensor *values[CUP__AGAIN_MOST];
    int saved_count = node->in_count + (node->custom ? 0 : node->out_count);
    for (int i = 0; i < saved_count; i++) {
        const cup__saved *saved = &node->in[i];
        values[i] = saved->maker ? cup__tape_again(c, saved->maker) : saved->tensor;
    }
    if (node->custom)
        return c->error.status == CUP_OK ? cup__custom_again(c, node, values) : NULL;
    const cup__grad g = {.c = c,
                         .row = node->row,
                         .attributes = node->attributes,
                         .in_count = node->in_count,
                         .out_count = node->out_count,
                         .in = values,
                         .out = values + node->in_count};
    return c->error.status == CUP_OK ? node->row->op->again(&g) : NULL;
}

cup_tensor *cup__tape_again(cup_context *c, uint32_t number)
{
    cup__node *node = c->tape->nodes[number - 1];
    if (node->again)
        return node->again;
    if (cup__tape_check(c, node) != CUP_OK)
        return NULL;
    bool was = cup_grad_recording(c, false);
    cup_tensor *y = make_again(c, node);
    cup_grad_recording(c, was);
    if (!y || c->error.status != CUP_OK)
        return NULL;
    /* Where gradients are recorded, they go through it to what it is made of. */
    y->node = number;
    y->generation = c->tape->generation;
    y->output = 0;
    cup__tensor_retain(y);
    return node->again = y;
}
