/* The passes through a GPT. */
#include <string.h>

#include "cupola/ops.h"
#include "nn/gpt.h"
#include "ops/index/embedding.h"
#include "tensor/tensor.h"

static double dropout_of(const cup_gpt *m, bool training)
{
    return training ? m->config.dropout : 0;
}

static cup_tensor *drop(const cup_gpt *m, cup_tensor *x, bool training)
{
    double dropout = dropout_of(m, training);
    return dropout > 0 ? cup_dropout(m->context, x, dropout) : x;
}

cup_tensor *cup__gpt_part(cup_tensor *x, int axis, int64_t from, int64_t to)
{
    if (!x)
        return NULL;
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        sizes[i] = -1;
    axis += axis < 0 ? x->ndim : 0;
    starts[axis] = from;
    sizes[axis] = to - from;
    return cup_slice(x->context, x, starts, x->ndim, sizes, x->ndim);
}

static cup_tensor *norm(const cup_gpt *m, cup_tensor *x, cup_tensor *gamma, cup_tensor *beta)
{
    double epsilon = m->config.epsilon;
    return m->config.norm == CUP_NORM_KIND_RMSNORM
               ? cup_rmsnorm(m->context, x, gamma, epsilon)
               : cup_layernorm(m->context, x, gamma, beta, epsilon);
}

/* Dropout by itself and not together with the sum, because sum and norm together are worth more:
 * backward then adds the two gradients of the sum on the way. */
cup_tensor *cup__gpt_add_norm(const cup_gpt *m, cup_tensor *x, cup_tensor *delta, cup_tensor *gamma,
                              cup_tensor *beta, bool training, cup_tensor **sum)
{
    cup_context *c = m->context;
    double epsilon = m->config.epsilon;
    cup_tensor *y = NULL;
    *sum = x;
    if (!delta)
        return norm(m, x, gamma, beta);
    delta = drop(m, delta, training);
    if (m->config.norm == CUP_NORM_KIND_RMSNORM)
        cup_add_rmsnorm(c, delta, x, gamma, epsilon, &y, sum);
    else
        cup_add_layernorm(c, delta, x, gamma, beta, epsilon, &y, sum);
    return y;
}

/* Turns the heads of queries and keys by their positions. */
static cup_tensor *turn(const cup_gpt *m, cup_tensor *qkv)
{
    cup_context *c = m->context;
    const cup_gpt_config *g = &m->config;
    int64_t batch = cup_tensor_size(qkv, 0), length = cup_tensor_size(qkv, 1);
    const int64_t apart[] = {batch, length, cup__gpt_parts(g), cup__gpt_head_size(g)};
    const int64_t swap[] = {0, 2, 1, 3};
    const int64_t together[] = {batch, length, -1};
    cup_tensor *heads = cup_permute(c, cup_reshape(c, qkv, 4, apart), swap, 4);
    heads = cup_rope(c, heads,
                     CUP_OPTIONS(cup_rope_options, .base = g->rope_base,
                                 .heads = (int)(g->heads + g->kv_heads)));
    return cup_reshape(c, cup_permute(c, heads, swap, 4), 3, together);
}

static cup_tensor *attend(const cup_gpt *m, const cup_gpt_block *b, cup_tensor *x, bool training)
{
    cup_context *c = m->context;
    const cup_gpt_config *g = &m->config;
    cup_tensor *qkv = cup_linear(c, x, b->qkv, b->qkv_bias);
    if (g->positions == CUP_POSITIONS_ROTARY)
        qkv = turn(m, qkv);
    cup_tensor *o =
        cup_qkv_attention(c, qkv, (int)g->heads,
                          CUP_OPTIONS(cup_qkv_attention_options, .kv_heads = (int)g->kv_heads,
                                      .causal = true, .dropout = dropout_of(m, training)));
    return cup_linear(c, o, b->join, b->join_bias);
}

cup_tensor *cup__gpt_mlp(const cup_gpt *m, const cup_gpt_block *b, cup_tensor *x)
{
    cup_context *c = m->context;
    if (m->config.mlp == CUP_MLP_KIND_GELU)
        return cup_linear(c, cup_linear_gelu(c, x, b->up, b->up_bias), b->down, b->down_bias);
    return cup_linear(c, cup_linear_swiglu(c, x, b->up, b->up_bias), b->down, b->down_bias);
}

/* One block. What it adds last stays apart in *delta, for the next norm to add. Nothing else of it
 * is kept but by the tape. */
static cup_tensor *pass_block(const cup_gpt *m, const cup_gpt_block *b, cup_tensor *x,
                              cup_tensor **delta, bool training)
{
    cup_scope_open(m->context);
    cup_tensor *y = cup__gpt_add_norm(m, x, *delta, b->norm1, b->norm1_bias, training, &x);
    *delta = attend(m, b, y, training);
    y = cup__gpt_add_norm(m, x, *delta, b->norm2, b->norm2_bias, training, &x);
    *delta = cup__gpt_mlp(m, b, y);
    cup__tensor_hand_out(*delta);
    return cup_scope_return(m->context, x);
}

static cup_tensor *run_recomputed(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const cup__gpt_pass *pass = user;
    cup_tensor *delta = NULL;
    cup_tensor *x = pass_block(pass->model, pass->block, inputs[0], &delta, pass->training);
    return cup_add(c, x, drop(pass->model, delta, pass->training));
}

static cup_tensor *embed(const cup_gpt *m, cup_tensor *tokens, bool training)
{
    cup_context *c = m->context;
    cup_tensor *x = cup_embedding(c, m->embedding, tokens);
    if (m->positions)
        x = cup_add(c, x, cup__gpt_part(m->positions, 0, 0, cup_tensor_size(tokens, 1)));
    return drop(m, x, training);
}

cup_status cup__gpt_tokens_check(const cup_gpt *m, const cup_tensor *tokens)
{
    cup_context *c = m->context;
    if (tokens->dtype != CUP_I32 && tokens->dtype != CUP_I64)
        return cup__fail(&c->error, CUP_DTYPE, "gpt: tokens are %s; they must be i32 or i64",
                         cup_dtype_name(tokens->dtype));
    for (int64_t i = 0; !c->device->is_cuda && i < tokens->count; i++) {
        int64_t id = cup__id_of(tokens, i);
        if (id < 0 || id >= m->config.vocabulary)
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "gpt: token %lld at position %lld is none of the model's %lld",
                             (long long)id, (long long)i, (long long)m->config.vocabulary);
    }
    return c->error.status;
}

static cup_status check_tokens(const cup_gpt *m, cup_tensor *tokens)
{
    char text[CUP__SHAPE_TEXT];
    cup_context *c = m->context;
    if (!tokens)
        return cup__fail(&c->error, CUP_ARGUMENT, "gpt: the tokens are NULL");
    if (tokens->ndim != 2 || tokens->shape[1] < 1 || tokens->shape[1] > m->config.context)
        return cup__fail(&c->error, CUP_SHAPE,
                         "gpt: tokens are %s; they must be [B,T] with T from 1 to the context %lld",
                         cup__tensor_text(tokens, text), (long long)m->config.context);
    return cup__gpt_tokens_check(m, tokens);
}

/* All of the model but the head: [B,T] to [B,T,width]. */
static cup_tensor *pass(const cup_gpt *m, cup_tensor *tokens, bool training)
{
    if (check_tokens(m, tokens) != CUP_OK)
        return NULL;
    cup_tensor *x = embed(m, tokens, training), *delta = NULL;
    for (int64_t i = 0; i < m->config.layers; i++) {
        if (m->recompute)
            x = cup_recompute(m->context, run_recomputed, &x, 1, &m->passes[2 * i + training]);
        else
            x = pass_block(m, &m->blocks[i], x, &delta, training);
    }
    return cup__gpt_add_norm(m, x, delta, m->norm, m->norm_bias, training, &x);
}

cup_tensor *cup_gpt_logits(cup_gpt *m, cup_tensor *tokens)
{
    if (!m)
        return NULL;
    cup_context *c = m->context;
    cup_scope_open(c);
    cup_tensor *logits = cup_linear(c, pass(m, tokens, false), m->head, NULL);
    return cup_scope_return(c, cup__gpt_part(logits, -1, 0, m->config.vocabulary));
}

#define LOGITS_MOST ((int64_t)8 << 30)

/* Rows of logits that may be there at once; 0 when that is all of them. */
static int64_t rows_at_once(const cup_gpt *m, const cup_tensor *targets)
{
    int64_t row = m->head->shape[0] * (int64_t)cup_dtype_size(m->dtype);
    int64_t rows = (m->logits_most > 0 ? m->logits_most : LOGITS_MOST) / row;
    rows = rows > 0 ? rows : 1;
    int64_t parts = (targets->count + rows - 1) / rows;
    return parts > 1 ? (targets->count + parts - 1) / parts : 0;
}

cup_tensor *cup_gpt_loss(cup_gpt *m, cup_tensor *tokens, cup_tensor *targets, bool training)
{
    if (!m)
        return NULL;
    cup_context *c = m->context;
    cup_scope_open(c);
    cup_tensor *x = pass(m, tokens, training), *loss;
    int64_t vocabulary = m->config.vocabulary;
    int64_t rows = training && targets ? rows_at_once(m, targets) : 0;
    if (rows > 0)
        loss = cup_linear_cross_entropy(
            c, x, m->head, targets, -1,
            CUP_OPTIONS(cup_linear_cross_entropy_options, .columns = vocabulary, .chunk = rows));
    else /* The logits are used up: in training their gradient takes their place. */
        loss = cup_cross_entropy(
            c, cup_linear(c, x, m->head, NULL), targets, -1,
            CUP_OPTIONS(cup_cross_entropy_options, .columns = vocabulary, .in_place = training));
    return cup_scope_return(c, loss);
}
