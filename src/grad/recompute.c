/* What is not kept for backward but computed again: the inside of blocks, and what norms and
 * activations give. */
#include "base/memory.h"
#include "grad/tape.h"

cup_tensor *cup_recompute(cup_context *c, cup_block block, cup_tensor *const *inputs, int count,
                          void *user)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!block) {
        cup__fail(&c->error, CUP_ARGUMENT, "recompute: there is no block to compute");
        return NULL;
    }
    if (!c->tape || !c->recording)
        return block(c, inputs, count, user);
    uint32_t sequence = c->random.sequence;
    cup__uses *uses = cup__calloc(1, sizeof *uses), *outer = c->tape->inside;
    c->tape->inside = uses;
    cup_grad_recording(c, false);
    cup_tensor *out = block(c, inputs, count, user);
    cup_grad_recording(c, true);
    c->tape->inside = outer;
    cup__node *node = out ? cup__tape_node(c, count, 1, 0) : NULL;
    if (!node) {
        cup__uses_free(uses);
        return NULL;
    }
    node->uses = uses;
    node->block = block;
    node->block_user = user;
    node->sequence = sequence;
    for (int i = 0; i < count; i++) {
        if (!inputs[i])
            continue;
        cup__tensor_retain(inputs[i]);
        node->in[i] = (cup__saved){cup__shape_of(inputs[i]), inputs[i],
                                   inputs[i]->storage->version, 0};
        cup__tape_link(c, node, i, inputs[i]);
    }
    node->out[0].shape = cup__shape_of(out);
    cup__tape_mark(c, out, 0);
    out->storage->recorded = c->tape->generation;
    return out;
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

static cup_status run_again(cup_context *c, const cup__walk *outer, cup__node *node,
                            cup_tensor **leaves)
{
    size_t first = c->tape->count;
    uint32_t sequence = c->random.sequence;
    c->random.sequence = node->sequence;
    cup_grad_recording(c, true);
    cup_tensor *out = node->block(c, leaves, node->in_count, node->block_user);
    cup_grad_recording(c, false);
    c->random.sequence = sequence;
    if (!out || c->error.status != CUP_OK)
        return c->error.status;
    if (c->tape->count == first || !cup__leads_to_parameter(c, out))
        return CUP_OK;
    CUP_TRY(cup__grad_add(c, &c->tape->nodes[out->node - 1]->d_out[out->output], node->d_out[0]));
    const cup__walk walk = {.inputs = leaves, .count = node->in_count, .outer = outer};
    return cup__tape_walk(c, &walk, c->tape->count, first);
}

/* Where gradients are recorded, the block is computed again from its inputs themselves, as if it
 * had never been one: what it records stays, and gradients go through that to what is before. */
static cup_status run_recorded(cup_context *c, const cup__walk *walk, cup__node *node)
{
    cup_tensor **inputs = cup__calloc((size_t)node->in_count, sizeof *inputs);
    size_t first = c->tape->count;
    uint32_t sequence = c->random.sequence;
    if (!inputs)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory in backward");
    for (int i = 0; i < node->in_count; i++)
        inputs[i] = node->in[i].tensor;
    c->random.sequence = node->sequence;
    cup_tensor *out = node->block(c, inputs, node->in_count, node->block_user);
    c->random.sequence = sequence;
    cup__free(inputs);
    if (!out || c->error.status != CUP_OK || c->tape->count == first ||
        !cup__leads_to_parameter(c, out))
        return c->error.status;
    CUP_TRY(cup__grad_add(c, &c->tape->nodes[out->node - 1]->d_out[out->output], node->d_out[0]));
    return cup__tape_walk(c, walk, c->tape->count, first);
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

bool cup_recompute_norms(cup_context *c, bool on)
{
    if (!c || !cup__tape_make(c))
        return false;
    bool was = c->tape->again;
    c->tape->again = on;
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
    for (int i = 0; i < node->in_count + node->out_count; i++) {
        const cup__saved *saved = &node->in[i];
        values[i] = saved->maker ? cup__tape_again(c, saved->maker) : saved->tensor;
    }
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
