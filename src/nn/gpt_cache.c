/* Reading token by token: keys and values of what was read are kept, and only new rows are
 * computed. */
#include "base/memory.h"
#include "cupola/ops.h"
#include "nn/gpt.h"
#include "dispatch/attributes.h"

struct cup_gpt_cache {
    cup_gpt *model;
    int64_t batch, length, used;
    cup_tensor **keys, **values; /* of each layer, [batch, kv_heads, length, head size] */
};

static cup_status make(cup_gpt_cache *cache)
{
    cup_gpt *m = cache->model;
    cup_context *c = m->context;
    const int64_t shape[] = {cache->batch, m->config.kv_heads, cache->length,
                             cup__gpt_head_size(&m->config)};
    cache->keys = cup__calloc((size_t)m->config.layers, sizeof *cache->keys);
    cache->values = cup__calloc((size_t)m->config.layers, sizeof *cache->values);
    if (!cache->keys || !cache->values)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a cache");
    for (int64_t i = 0; i < m->config.layers; i++) {
        cache->keys[i] = cup_keep(cup_tensor_new(c, m->dtype, 4, shape));
        cache->values[i] = cup_keep(cup_tensor_new(c, m->dtype, 4, shape));
    }
    return c->error.status;
}

cup_gpt_cache *cup_gpt_cache_new(cup_gpt *m, int64_t batch, int64_t length)
{
    if (!m || m->context->error.status != CUP_OK)
        return NULL;
    if (length == 0)
        length = m->config.context;
    if (batch < 1 || length < 1 || length > m->config.context) {
        cup__fail(&m->context->error, CUP_ARGUMENT,
                  "cache: %lld texts of %lld tokens; there must be at least one of each, and the "
                  "model's context is %lld",
                  (long long)batch, (long long)length, (long long)m->config.context);
        return NULL;
    }
    cup_gpt_cache *cache = cup__calloc(1, sizeof *cache);
    if (!cache) {
        cup__fail(&m->context->error, CUP_MEMORY, "out of host memory for a cache");
        return NULL;
    }
    *cache = (cup_gpt_cache){.model = m, .batch = batch, .length = length};
    cup__context_join(m->context);
    if (make(cache) == CUP_OK)
        return cache;
    cup_gpt_cache_free(cache);
    return NULL;
}

void cup_gpt_cache_free(cup_gpt_cache *cache)
{
    if (!cache)
        return;
    for (int64_t i = 0; i < cache->model->config.layers; i++) {
        if (cache->keys)
            cup_tensor_free(cache->keys[i]);
        if (cache->values)
            cup_tensor_free(cache->values[i]);
    }
    cup__free(cache->keys);
    cup__free(cache->values);
    cup__context_leave(cache->model->context);
    cup__free(cache);
}

int64_t cup_gpt_cache_used(const cup_gpt_cache *cache)
{
    return cache ? cache->used : 0;
}

void cup_gpt_cache_cut(cup_gpt_cache *cache, int64_t used)
{
    if (cache && used >= 0 && used < cache->used)
        cache->used = used;
}

/* The positions [from, to) of a layer's keys or values. */
static cup_tensor *stretch(cup_tensor *all, int64_t from, int64_t to)
{
    if (!all)
        return NULL;
    cup__shape shape = cup__shape_of(all);
    shape.size[2] = to - from;
    return cup__tensor_view(all, &shape, all->stride, from * all->stride[2]);
}

/* Puts new keys or values behind those that are there and returns all of them. */
static cup_tensor *append(cup_gpt_cache *cache, cup_tensor *all, cup_tensor *fresh)
{
    if (!fresh)
        return NULL;
    int64_t to = cache->used + fresh->shape[2];
    cup_tensor *place = stretch(all, cache->used, to);
    if (!place ||
        !cup__op_call(cache->model->context, &cup__rows[CUP__OP_copy], &fresh, 1, NULL, &place))
        return NULL;
    return stretch(all, 0, to);
}

/* Attention of new rows [B,T,width] to all that was read, their own rows included. */
static cup_tensor *attend(cup_gpt_cache *cache, int64_t layer, cup_tensor *x)
{
    const cup_gpt *m = cache->model;
    const cup_gpt_config *g = &m->config;
    const cup_gpt_block *b = &m->blocks[layer];
    cup_context *c = m->context;
    int64_t length = cup_tensor_size(x, 1), own = g->heads, shared = g->kv_heads;
    const int64_t apart[] = {cache->batch, length, cup__gpt_parts(g), cup__gpt_head_size(g)};
    const int64_t together[] = {cache->batch, length, g->width};
    const int64_t swap[] = {0, 2, 1, 3};
    cup_tensor *qkv = cup_reshape(c, cup_linear(c, x, b->qkv, b->qkv_bias), 4, apart);
    qkv = cup_permute(c, qkv, swap, 4);
    if (g->positions == CUP_POSITIONS_ROTARY)
        qkv = cup_rope(c, qkv,
                       CUP_OPTIONS(cup_rope_options, .base = g->rope_base, .offset = cache->used,
                                   .heads = (int)(own + shared)));
    cup_tensor *q = cup__gpt_part(qkv, 1, 0, own);
    cup_tensor *k = cup__gpt_part(qkv, 1, own, own + shared);
    cup_tensor *v = cup__gpt_part(qkv, 1, own + shared, own + 2 * shared);
    k = append(cache, cache->keys[layer], k);
    v = append(cache, cache->values[layer], v);
    cup_tensor *o = cup_permute(
        c, cup_attention(c, q, k, v, CUP_OPTIONS(cup_attention_options, .causal = true)), swap, 4);
    return cup_linear(c, cup_reshape(c, o, 3, together), b->join, b->join_bias);
}

static cup_status check_room(cup_gpt_cache *cache, cup_tensor *tokens)
{
    cup_context *c = cache->model->context;
    if (!tokens)
        return cup__fail(&c->error, CUP_ARGUMENT, "cache: the tokens are NULL");
    char text[CUP__SHAPE_TEXT];
    if (tokens->ndim != 2 || tokens->shape[0] != cache->batch || tokens->shape[1] < 1)
        return cup__fail(&c->error, CUP_SHAPE, "cache: tokens are %s; they must be [%lld,T]",
                         cup__tensor_text(tokens, text), (long long)cache->batch);
    if (tokens->shape[1] > cache->length - cache->used)
        return cup__fail(&c->error, CUP_STATE,
                         "cache: %lld tokens were read and there is room for %lld, not for %lld "
                         "more; cut it first",
                         (long long)cache->used, (long long)cache->length,
                         (long long)tokens->shape[1]);
    return cup__gpt_tokens_check(cache->model, tokens);
}

static cup_tensor *read(cup_gpt_cache *cache, cup_tensor *tokens)
{
    const cup_gpt *m = cache->model;
    cup_context *c = m->context;
    int64_t length = tokens->shape[1], used = cache->used;
    cup_tensor *x = cup_embedding(c, m->embedding, tokens), *delta = NULL;
    if (m->positions)
        x = cup_add(c, x, cup__gpt_part(m->positions, 0, used, used + length));
    for (int64_t i = 0; i < m->config.layers; i++) {
        const cup_gpt_block *b = &m->blocks[i];
        cup_scope_open(c);
        cup_tensor *y = cup__gpt_add_norm(m, x, delta, b->norm1, b->norm1_bias, false, &x);
        delta = attend(cache, i, y);
        y = cup__gpt_add_norm(m, x, delta, b->norm2, b->norm2_bias, false, &x);
        delta = cup__gpt_mlp(m, b, y);
        cup__tensor_hand_out(x);
        cup_scope_return(c, delta);
    }
    x = cup__gpt_part(x, 1, length - 1, length);
    delta = cup__gpt_part(delta, 1, length - 1, length);
    cup_tensor *y = cup__gpt_add_norm(m, x, delta, m->norm, m->norm_bias, false, &x);
    cup_tensor *logits =
        cup__gpt_part(cup_linear(c, y, m->head, NULL), -1, 0, m->config.vocabulary);
    return cup_reshape(c, logits, 2, (const int64_t[]){cache->batch, m->config.vocabulary});
}

cup_tensor *cup_gpt_read(cup_gpt_cache *cache, cup_tensor *tokens)
{
    if (!cache || check_room(cache, tokens) != CUP_OK)
        return NULL;
    cup_context *c = cache->model->context;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_tensor *logits = cup_scope_return(c, read(cache, tokens));
    cup_grad_recording(c, was);
    if (logits)
        cache->used += tokens->shape[1];
    return logits;
}
