/* Rows that come behind those whose keys and values are kept, through a block of a transformer. */
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "nn/layers.h"
#include "ops/transformer/transformer_read.h"
#include "tensor/tensor.h"

/* Whether what is kept belongs to the layer and has room for x [B,T,width]. */
static cup_status check(const cup_transformer_layer *layer, cup_context *c, const cup_tensor *x,
                        const cup__reading *past)
{
    const cup_attention_layer *a = &layer->attention;
    char keys[CUP__SHAPE_TEXT], values[CUP__SHAPE_TEXT];
    const cup_tensor *k = past->keys, *v = past->values;
    if (past->kept && a->alibi)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "transformer: a cache of keys and values does not know of alibi; keep "
                         "them in tensors, see cup_transformer_layer_read");
    if (past->kept && past->position && a->rope && a->rope_scaling.dynamic)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "transformer: dynamic rotary positions need to be told how many a cache "
                         "of keys and values has; see cup_transformer_layer_read_kept");
    if (past->kept && x->ndim == 3)
        return c->error.status;
    if (!k || !v || x->ndim != 3)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "transformer: to read, it needs keys, values, and an x [B,T,width]");
    cup__shape shape = cup__shape_of(k), other = cup__shape_of(v);
    if (k->ndim != 4 || !cup__shape_equal(&shape, &other) || k->shape[0] != x->shape[0] ||
        k->shape[1] != a->kv_heads || k->shape[3] != a->head_size || k->dtype != x->dtype ||
        v->dtype != x->dtype)
        return cup__fail(&c->error, CUP_SHAPE,
                         "transformer: keys are %s and values %s; both must be [%lld,%d,length,%d] "
                         "%s",
                         cup__tensor_text(k, keys), cup__tensor_text(v, values),
                         (long long)x->shape[0], a->kv_heads, a->head_size,
                         cup_dtype_name(x->dtype));
    if (past->position && x->shape[1] != 1)
        return cup__fail(&c->error, CUP_SHAPE,
                         "transformer: a position on the device is that of one row a text, not of "
                         "%lld",
                         (long long)x->shape[1]);
    if (past->gone < 0 || (past->gone > 0 && (!a->window || past->used < a->window - 1)))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "transformer: of %lld positions that are kept no longer a window of %lld "
                         "does not hide all, behind %lld that are; keep as many as it has but one",
                         (long long)past->gone, (long long)a->window, (long long)past->used);
    if (past->used < 0 || past->used > k->shape[2] || x->shape[1] > k->shape[2] - past->used)
        return cup__fail(&c->error, CUP_STATE,
                         "transformer: %lld positions were read, and there is no room for %lld "
                         "more in keys of %lld",
                         (long long)past->used, (long long)x->shape[1], (long long)k->shape[2]);
    return CUP_OK;
}

/* The positions [from, to) of keys or values. */
static cup_tensor *stretch(cup_tensor *all, int64_t from, int64_t to)
{
    cup__shape shape = cup__shape_of(all);
    shape.size[2] = to - from;
    return cup__tensor_view(all, &shape, all->stride, from * all->stride[2]);
}

/* Puts new keys or values behind those that are there and returns all of them. */
static cup_tensor *append(cup_context *c, cup_tensor *all, int64_t used, cup_tensor *fresh)
{
    if (!fresh)
        return NULL;
    int64_t to = used + fresh->shape[2];
    cup_tensor *place = stretch(all, used, to);
    if (!place || !cup__op_call(c, &cup__rows[CUP__OP_copy], &fresh, 1, NULL, &place))
        return NULL;
    return stretch(all, 0, to);
}

static cup_tensor *heads_of(cup_context *c, cup_tensor *qkv, int64_t from, int64_t count)
{
    return cup_slice(c, qkv, (int64_t[]){0, from, 0, 0}, 4, (int64_t[]){-1, count, -1, -1}, 4);
}

/* Attention of queries to what is kept and to the keys and values that come behind it. */
static cup_tensor *attend(const cup_attention_layer *layer, cup_context *c, cup_tensor *q,
                          cup_tensor *k, cup_tensor *v, const cup__reading *past)
{
    int64_t window = past->position
                         ? layer->window
                         : cup__attention_layer_window(layer, past->used + q->shape[2]);
    const cup__layer_scores scores = cup__attention_layer_scores(layer, c);
    if (past->kept)
        return cup_kv_cache_append(past->kept, past->index, k, v, NULL) == CUP_OK
                   ? cup_kv_cache_attend(past->kept, past->index, q, NULL,
                                         CUP_OPTIONS(cup_kv_cache_attend_options,
                                                     .window_left = window,
                                                     .soft_cap = scores.soft_cap,
                                                     .sinks = scores.sinks))
                   : NULL;
    k = append(c, past->keys, past->used, k);
    v = append(c, past->values, past->used, v);
    return cup_attention(
        c, q, k, v,
        CUP_OPTIONS(cup_attention_options, .causal = true, .window_left = window,
                    .soft_cap = scores.soft_cap, .slopes = scores.slopes, .sinks = scores.sinks));
}

/* The same of one row a text at a position on the device. */
static cup_tensor *attend_at(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv,
                             const cup__reading *past)
{
    const cup_rope_scaling *s = &layer->rope_scaling;
    int64_t length = past->keys->shape[2];
    bool grows = layer->rope && s->dynamic;
    cup_rope_options how = cup__attention_layer_rope(layer, 0);
    how.factor = grows ? s->factor : how.factor;
    how.original = grows ? s->original : how.original;
    const cup__layer_scores scores = cup__attention_layer_scores(layer, c);
    return cup_qkv_attention_read(
        c, qkv, past->keys, past->values, past->position, layer->heads,
        CUP_OPTIONS(cup_qkv_attention_read_options, .rope_base = layer->rope ? how.base : 0,
                    .rope_factor = how.factor, .rope_original = how.original, .rope_low = how.low,
                    .rope_high = how.high, .rope_yarn = how.yarn,
                    .rope_untruncated = how.untruncated, .rope_amplitude = how.amplitude,
                    .window_left = cup__attention_layer_window(layer, length),
                    .soft_cap = scores.soft_cap, .slopes = scores.slopes, .sinks = scores.sinks,
                    .rope_dynamic = grows, .place = past->place));
}

cup_tensor *cup__reading_attention(const cup_attention_layer *layer, cup_tensor *x,
                                   const cup__reading *past)
{
    cup_context *c = cup__parameters_context(layer->layer.parameters);
    cup_tensor *qkv = cup__attention_layer_qkv(layer, c, x);
    if (!qkv)
        return NULL;
    if (past->position && !past->kept)
        return cup_linear_layer_call(&layer->out, attend_at(layer, c, qkv, past));
    int64_t own = layer->heads, shared = layer->kv_heads;
    int64_t batch = x->shape[0], length = x->shape[1];
    const int64_t apart[] = {batch, length, own + 2 * shared, layer->head_size};
    const int64_t together[] = {batch, length, own * layer->head_size};
    const int64_t swap[] = {0, 2, 1, 3};
    qkv = cup_permute(c, cup_reshape(c, qkv, 4, apart), swap, 4);
    int64_t before = past->gone + past->used;
    cup_rope_options how = cup__attention_layer_rope(layer, before + length);
    how.offset = before;
    how.positions = past->position;
    if (layer->rope)
        qkv = cup_rope(c, qkv, &how);
    cup_tensor *q = heads_of(c, qkv, 0, own), *k = heads_of(c, qkv, own, shared);
    cup_tensor *v = heads_of(c, qkv, own + shared, shared);
    cup_tensor *o = q && k && v ? attend(layer, c, q, k, v, past) : NULL;
    o = cup_permute(c, o, swap, 4);
    return cup_linear_layer_call(&layer->out, cup_reshape(c, o, 3, together));
}

/* One new row of one text as one kernel; false where there is none for it, or the layer's own calls
 * are to be seen. */
static bool read_at_once(const cup_transformer_layer *layer, cup_context *c, cup_tensor **x,
                         cup_tensor **delta, const cup__reading *past)
{
    const cup_attention_layer *a = &layer->attention;
    const cup_mlp_layer *m = &layer->mlp;
    bool rms = layer->rms, gated = m->up.activation == CUP_ACTIVATION_SWIGLU;
    bool one_epsilon = rms ? layer->rmsnorm1.epsilon == layer->rmsnorm2.epsilon
                           : layer->norm1.epsilon == layer->norm2.epsilon;
    cup_parameters *list = layer->layer.parameters;
    bool drops = layer->dropout > 0 && cup__parameters_is_training(list);
    /* Where there is a position, dynamic ones have their plain base. */
    const cup_rope_options rope = cup__attention_layer_rope(a, 0);
    bool scaled = rope.factor > 0 || rope.amplitude > 0;
    int64_t length = past->keys ? past->keys->shape[2] : 0;
    bool grows = a->rope_scaling.dynamic && length > a->rope_scaling.original;
    bool plain = !cup__attention_layer_window(a, length) && !(a->soft_cap > 0) && !a->alibi &&
                 !a->sinks && !grows;
    bool adapted = a->qkv.lora || a->out.lora || m->up.lora || m->down.lora;
    if (drops || cup_parameters_comm(list) || !one_epsilon || a->q_norm || scaled || adapted ||
        !plain || past->kept || !past->position || past->position->count != 1 ||
        (*x)->shape[0] != 1 || (!gated && m->up.activation != CUP_ACTIVATION_GELU) ||
        !m->up.weight || !m->down.weight)
        return false;
    cup_tensor *in[CUP__READ_INPUTS] = {
        *x, past->keys, past->values, past->position,
        rms ? layer->rmsnorm1.weight : layer->norm1.weight, a->qkv.weight, a->out.weight,
        rms ? layer->rmsnorm2.weight : layer->norm2.weight, m->up.weight, m->down.weight,
        delta ? *delta : NULL, rms ? NULL : layer->norm1.bias, a->qkv.bias, a->out.bias,
        rms ? NULL : layer->norm2.bias, m->up.bias, m->down.bias};
    const cup__transformer_read_attributes attributes = {
        .heads = a->heads,
        .eps = rms ? layer->rmsnorm1.epsilon : layer->norm1.epsilon,
        .rms = rms,
        .gated = gated,
        .rope_base = a->rope ? rope.base : 0};
    if (!cup__transformer_read_takes(c, in, &attributes))
        return false;
    cup_tensor *out[2] = {NULL, NULL};
    cup__op_call(c, &cup__rows[CUP__OP_transformer_read], in, CUP__READ_INPUTS, &attributes, out);
    *x = out[0];
    if (delta)
        *delta = out[1];
    return true;
}

static cup_tensor *read_past(const cup_transformer_layer *layer, cup_tensor *x, cup_tensor **delta,
                             const cup__reading *past)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c || check(layer, c, x, past) != CUP_OK)
        return NULL;
    bool was = cup_grad_recording(c, false);
    if (!read_at_once(layer, c, &x, delta, past))
        x = cup__transformer_layer_pass(layer, x, delta, NULL, past);
    cup_grad_recording(c, was);
    return x;
}

cup_tensor *cup_transformer_layer_read(const cup_transformer_layer *layer, cup_tensor *x,
                                       cup_tensor **delta, cup_tensor *keys, cup_tensor *values,
                                       int64_t used)
{
    return read_past(layer, x, delta, &(cup__reading){keys, values, used, .gone = 0});
}

cup_tensor *cup_transformer_layer_read_window(const cup_transformer_layer *layer, cup_tensor *x,
                                              cup_tensor **delta, cup_tensor *keys,
                                              cup_tensor *values, int64_t used, int64_t gone)
{
    return read_past(layer, x, delta, &(cup__reading){keys, values, used, .gone = gone});
}

/* The same where the caller has to name something, which is NULL if it is not there. */
static cup_tensor *read_with(const cup_transformer_layer *layer, cup_tensor *x, cup_tensor **delta,
                             const cup__reading *past, const void *named, const char *what)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (c && !named)
        cup__fail(&c->error, CUP_ARGUMENT, "transformer: the %s is NULL", what);
    return c && named ? read_past(layer, x, delta, past) : NULL;
}

cup_tensor *cup_transformer_layer_read_kept(const cup_transformer_layer *layer, cup_tensor *x,
                                            cup_tensor **delta, cup_kv_cache *kept, int64_t index,
                                            int64_t used)
{
    const cup__reading past = {.used = used, .kept = kept, .index = index};
    return read_with(layer, x, delta, &past, kept, "cache to read behind");
}

cup_tensor *cup_transformer_layer_read_kept_at(const cup_transformer_layer *layer, cup_tensor *x,
                                               cup_tensor **delta, cup_kv_cache *kept,
                                               int64_t index)
{
    const cup__reading past = {
        .position = cup_kv_cache_lengths(kept), .kept = kept, .index = index};
    return read_with(layer, x, delta, &past, kept, "cache to read behind");
}

cup_tensor *cup_transformer_layer_read_at(const cup_transformer_layer *layer, cup_tensor *x,
                                          cup_tensor **delta, cup_tensor *keys,
                                          cup_tensor *values, cup_tensor *position)
{
    const cup__reading past = {keys, values, .position = position};
    return read_with(layer, x, delta, &past, position, "position to read at");
}

cup_tensor *cup_transformer_layer_read_window_at(const cup_transformer_layer *layer, cup_tensor *x,
                                                 cup_tensor **delta, cup_tensor *keys,
                                                 cup_tensor *values, cup_tensor *position,
                                                 cup_tensor *place)
{
    const cup__reading past = {keys, values, .position = position, .place = place};
    return read_with(layer, x, delta, &past, position ? place : position,
                     position ? "place of the new key" : "position to read at");
}
