/* Layers made of layers: attention, MLP, the block of a transformer. */
#include <math.h>

#include "base/options.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

#define DEVIATION 0.02
#define ROPE_BASE 10000

CUP__LAYER_CALL(attention)
CUP__LAYER_CALL(mlp)
CUP__LAYER_CALL(transformer)

static cup_tensor *drop(const cup_layer *layer, cup_context *c, cup_tensor *x, double p)
{
    return p > 0 && cup__parameters_is_training(layer->parameters) ? cup_dropout(c, x, p) : x;
}

static cup_status check_probability(cup_parameters *list, double p)
{
    if (p >= 0 && p < 1)
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "layer under \"%s\": dropout must be at least 0 and below 1, not %g",
                     cup__parameters_prefix(list), p);
}

static cup_status check_attention(cup_parameters *list, int64_t width, int64_t heads,
                                  const cup_attention_layer_options *o)
{
    cup_context *c = cup__parameters_context(list);
    CUP_TRY(cup__layer_size(list, "width", width));
    CUP_TRY(cup__layer_size(list, "heads", heads));
    CUP_TRY(cup__layer_size(list, "kv_heads", o->kv_heads));
    CUP_TRY(check_probability(list, o->dropout));
    if (width % heads != 0 || heads % o->kv_heads != 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": a width of %lld, %lld heads and %lld of keys and "
                         "values do not divide each other",
                         cup__parameters_prefix(list), (long long)width, (long long)heads,
                         (long long)o->kv_heads);
    if (o->rope && (width / heads % 2 != 0 || !(o->rope_base > 1 && isfinite(o->rope_base))))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": rope needs heads of an even size and a base "
                         "above 1, not %lld and %g",
                         cup__parameters_prefix(list), (long long)(width / heads), o->rope_base);
    return CUP_OK;
}

/* Everything but the tensors. */
static cup_status set_attention(cup_attention_layer *layer, cup_parameters *list, int64_t width,
                                int64_t heads, cup_attention_layer_options o)
{
    o.kv_heads = o.kv_heads == 0 ? heads : o.kv_heads;
    o.rope_base = o.rope_base == 0 ? ROPE_BASE : o.rope_base;
    CUP_TRY(check_attention(list, width, heads, &o));
    layer->heads = (int)heads;
    layer->kv_heads = (int)o.kv_heads;
    layer->head_size = (int)(width / heads);
    layer->causal = o.causal;
    layer->rope = o.rope;
    layer->rope_base = o.rope_base;
    layer->dropout = o.dropout;
    return CUP_OK;
}

/* `shrink` makes the weight smaller that leads back to the residual stream. */
static cup_status make_attention(cup_attention_layer *layer, cup_parameters *list, int64_t width,
                                 int64_t heads, cup_attention_layer_options o, double shrink)
{
    CUP_TRY(set_attention(layer, list, width, heads, o));
    cup_linear_layer_options linear = {.size = sizeof linear,
                                       .no_bias = o.no_bias,
                                       .initializer = o.initializer,
                                       .deviation = o.deviation,
                                       .gain = o.gain};
    int64_t all = (heads + 2 * (int64_t)layer->kv_heads) * layer->head_size;
    CUP_TRY(cup_linear_layer_new(&layer->qkv, list, "qkv", width, all, &linear));
    linear.deviation *= shrink;
    return cup_linear_layer_new(&layer->out, list, "out", width, width, &linear);
}

cup_status cup_attention_layer_new(cup_attention_layer *layer, cup_parameters *list,
                                   const char *name, int64_t width, int64_t heads,
                                   const cup_attention_layer_options *options)
{
    cup_attention_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_attention));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "attention", &o, sizeof o, options) == CUP_OK)
        make_attention(layer, list, width, heads, o, 1);
    return cup__layer_end(layer, sizeof *layer);
}

/* Turns the heads of queries and keys by their positions. */
static cup_tensor *turn(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv)
{
    const int64_t swap[] = {0, 2, 1, 3};
    int64_t batch = cup_tensor_size(qkv, 0), length = cup_tensor_size(qkv, 1);
    int64_t parts = layer->heads + 2 * (int64_t)layer->kv_heads, size = layer->head_size;
    const int64_t apart[] = {batch, length, parts, size};
    const int64_t together[] = {batch, length, parts * size};
    cup_tensor *x = cup_permute(c, cup_reshape(c, qkv, 4, apart), swap, 4);
    x = cup_rope(c, x,
                 CUP_OPTIONS(cup_rope_options, .base = layer->rope_base,
                             .heads = layer->heads + layer->kv_heads));
    return cup_reshape(c, cup_permute(c, x, swap, 4), 3, together);
}

cup_tensor *cup_attention_layer_call(const cup_attention_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    if (cup_tensor_ndim(x) != 3) {
        cup__fail(&c->error, CUP_SHAPE,
                  "attention under \"%s\": its input has %d dimensions; it must be [B,T,width]",
                  cup__parameters_prefix(layer->layer.parameters), cup_tensor_ndim(x));
        return NULL;
    }
    bool training = cup__parameters_is_training(layer->layer.parameters);
    cup_tensor *qkv = cup_linear_layer_call(&layer->qkv, x);
    if (layer->rope && qkv)
        qkv = turn(layer, c, qkv);
    cup_tensor *o = cup_qkv_attention(
        c, qkv, layer->heads,
        CUP_OPTIONS(cup_qkv_attention_options, .kv_heads = layer->kv_heads, .causal = layer->causal,
                    .dropout = training ? layer->dropout : 0));
    return cup_linear_layer_call(&layer->out, o);
}

/* Keys and values of what was read before, [B,kv_heads,length,head size], of which the first `used`
 * positions are there. */
typedef struct reading {
    cup_tensor *keys, *values;
    int64_t used;
    cup_tensor *position; /* of one new row a text, on the device; NULL: `used` */
} reading;

static cup_status check_past(const cup_transformer_layer *layer, cup_context *c,
                             const cup_tensor *x, const reading *past)
{
    const cup_attention_layer *a = &layer->attention;
    char keys[CUP__SHAPE_TEXT], values[CUP__SHAPE_TEXT];
    const cup_tensor *k = past->keys, *v = past->values;
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

/* Attention of new rows [B,T,width] to all that was read, their own rows included. */
static cup_tensor *read_attention(const cup_attention_layer *layer, cup_tensor *x,
                                  const reading *past)
{
    cup_context *c = cup__parameters_context(layer->layer.parameters);
    cup_tensor *qkv = cup_linear_layer_call(&layer->qkv, x);
    if (!qkv)
        return NULL;
    if (past->position)
        return cup_linear_layer_call(
            &layer->out,
            cup_qkv_attention_read(c, qkv, past->keys, past->values, past->position, layer->heads,
                                   CUP_OPTIONS(cup_qkv_attention_read_options,
                                               .rope_base = layer->rope ? layer->rope_base : 0)));
    int64_t own = layer->heads, shared = layer->kv_heads;
    int64_t batch = x->shape[0], length = x->shape[1];
    const int64_t apart[] = {batch, length, own + 2 * shared, layer->head_size};
    const int64_t together[] = {batch, length, own * layer->head_size};
    const int64_t swap[] = {0, 2, 1, 3};
    qkv = cup_permute(c, cup_reshape(c, qkv, 4, apart), swap, 4);
    if (layer->rope)
        qkv = cup_rope(c, qkv,
                       CUP_OPTIONS(cup_rope_options, .base = layer->rope_base,
                                   .offset = past->used, .heads = (int)(own + shared)));
    cup_tensor *q = heads_of(c, qkv, 0, own);
    cup_tensor *k = append(c, past->keys, past->used, heads_of(c, qkv, own, shared));
    cup_tensor *v = append(c, past->values, past->used, heads_of(c, qkv, own + shared, shared));
    cup_tensor *o = cup_permute(
        c, cup_attention(c, q, k, v, CUP_OPTIONS(cup_attention_options, .causal = true)), swap, 4);
    return cup_linear_layer_call(&layer->out, cup_reshape(c, o, 3, together));
}

static cup_status make_mlp(cup_mlp_layer *layer, cup_parameters *list, int64_t width,
                           int64_t hidden, const cup_mlp_layer_options *o, double shrink)
{
    cup_linear_layer_options linear = {
        .size = sizeof linear,
        .activation = o->activation == CUP_ACTIVATION_NONE ? CUP_ACTIVATION_GELU : o->activation,
        .no_bias = o->no_bias,
        .initializer = o->initializer,
        .deviation = o->deviation,
        .gain = o->gain};
    CUP_TRY(cup_linear_layer_new(&layer->up, list, "up", width, hidden, &linear));
    linear.activation = CUP_ACTIVATION_NONE;
    linear.deviation *= shrink;
    return cup_linear_layer_new(&layer->down, list, "down", hidden, width, &linear);
}

cup_status cup_mlp_layer_new(cup_mlp_layer *layer, cup_parameters *list, const char *name,
                             int64_t width, int64_t hidden, const cup_mlp_layer_options *options)
{
    cup_mlp_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_mlp));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "mlp", &o, sizeof o, options) == CUP_OK)
        make_mlp(layer, list, width, hidden, &o, 1);
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_mlp_layer_call(const cup_mlp_layer *layer, cup_tensor *x)
{
    if (!cup__layer_context((const cup_layer *)layer, x))
        return NULL;
    return cup_linear_layer_call(&layer->down, cup_linear_layer_call(&layer->up, x));
}

static cup_status make_halves(cup_transformer_layer *layer, cup_parameters *list, int64_t width,
                              int64_t heads, const cup_transformer_layer_options *o)
{
    double deviation = o->deviation == 0 ? DEVIATION : o->deviation;
    double shrink = o->layers > 0 ? 1 / sqrt(2.0 * (double)o->layers) : 1;
    bool gated = o->activation == CUP_ACTIVATION_SWIGLU;
    int64_t hidden = o->hidden ? o->hidden : gated ? (width * 8 / 3 + 63) / 64 * 64 : 4 * width;
    const cup_attention_layer_options attention = {.size = sizeof attention,
                                                   .kv_heads = o->kv_heads,
                                                   .causal = o->causal,
                                                   .rope = o->rope,
                                                   .rope_base = o->rope_base,
                                                   .dropout = o->dropout,
                                                   .no_bias = o->no_bias,
                                                   .initializer = CUP_INITIALIZER_NORMAL,
                                                   .deviation = deviation};
    const cup_mlp_layer_options mlp = {.size = sizeof mlp,
                                       .activation = o->activation,
                                       .no_bias = o->no_bias,
                                       .initializer = CUP_INITIALIZER_NORMAL,
                                       .deviation = deviation};
    cup_parameters *part = cup_parameters_under(list, "attention");
    CUP_TRY(cup__layer_begin(&layer->attention, sizeof layer->attention, part, call_attention));
    CUP_TRY(make_attention(&layer->attention, part, width, heads, attention, shrink));
    part = cup_parameters_under(list, "mlp");
    CUP_TRY(cup__layer_begin(&layer->mlp, sizeof layer->mlp, part, call_mlp));
    return make_mlp(&layer->mlp, part, width, hidden, &mlp, shrink);
}

static cup_status make_transformer(cup_transformer_layer *layer, cup_parameters *list,
                                   int64_t width, int64_t heads,
                                   const cup_transformer_layer_options *o)
{
    const cup_norm_layer_options norm = {
        .size = sizeof norm, .epsilon = o->epsilon, .no_bias = o->no_bias};
    CUP_TRY(check_probability(list, o->dropout));
    CUP_TRY(cup__layer_size(list, "width", width));
    layer->dropout = o->dropout;
    layer->rms = o->rmsnorm;
    if (o->rmsnorm) {
        CUP_TRY(cup_rmsnorm_layer_new(&layer->rmsnorm1, list, "norm1", width, &norm));
        CUP_TRY(cup_rmsnorm_layer_new(&layer->rmsnorm2, list, "norm2", width, &norm));
    } else {
        CUP_TRY(cup_layernorm_layer_new(&layer->norm1, list, "norm1", width, &norm));
        CUP_TRY(cup_layernorm_layer_new(&layer->norm2, list, "norm2", width, &norm));
    }
    return make_halves(layer, list, width, heads, o);
}

cup_status cup_transformer_layer_new(cup_transformer_layer *layer, cup_parameters *list,
                                     const char *name, int64_t width, int64_t heads,
                                     const cup_transformer_layer_options *options)
{
    cup_transformer_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_transformer));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "transformer", &o, sizeof o, options) == CUP_OK)
        make_transformer(layer, list, width, heads, &o);
    return cup__layer_end(layer, sizeof *layer);
}

static cup_status take_tensors(cup_transformer_layer *layer, cup_parameters *list,
                               const cup_transformer_tensors *t, int64_t heads,
                               const cup_transformer_layer_options *o)
{
    const cup_attention_layer_options attention = {.kv_heads = o->kv_heads,
                                                   .causal = o->causal,
                                                   .rope = o->rope,
                                                   .rope_base = o->rope_base,
                                                   .dropout = o->dropout};
    cup_activation up =
        o->activation == CUP_ACTIVATION_NONE ? CUP_ACTIVATION_GELU : o->activation;
    if (o->rmsnorm) {
        CUP_TRY(cup_rmsnorm_layer_of(&layer->rmsnorm1, list, t->norm1, o->epsilon));
        CUP_TRY(cup_rmsnorm_layer_of(&layer->rmsnorm2, list, t->norm2, o->epsilon));
    } else {
        CUP_TRY(cup_layernorm_layer_of(&layer->norm1, list, t->norm1, t->norm1_bias, o->epsilon));
        CUP_TRY(cup_layernorm_layer_of(&layer->norm2, list, t->norm2, t->norm2_bias, o->epsilon));
    }
    cup_attention_layer *a = &layer->attention;
    cup_mlp_layer *m = &layer->mlp;
    CUP_TRY(cup__layer_begin(a, sizeof *a, list, call_attention));
    CUP_TRY(set_attention(a, list, cup_tensor_size(t->norm1, 0), heads, attention));
    CUP_TRY(cup__layer_begin(m, sizeof *m, list, call_mlp));
    CUP_TRY(cup_linear_layer_of(&a->qkv, list, t->qkv, t->qkv_bias, CUP_ACTIVATION_NONE));
    CUP_TRY(cup_linear_layer_of(&a->out, list, t->out, t->out_bias, CUP_ACTIVATION_NONE));
    CUP_TRY(cup_linear_layer_of(&m->up, list, t->up, t->up_bias, up));
    return cup_linear_layer_of(&m->down, list, t->down, t->down_bias, CUP_ACTIVATION_NONE);
}

cup_status cup_transformer_layer_of(cup_transformer_layer *layer, cup_parameters *list,
                                    const cup_transformer_tensors *tensors, int64_t heads,
                                    const cup_transformer_layer_options *options)
{
    cup_transformer_layer_options o;
    cup_transformer_tensors t;
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_transformer));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "transformer", &o, sizeof o, options) == CUP_OK &&
        cup__options_take(&c->error, "transformer: its tensors", &t, sizeof t, tensors) == CUP_OK &&
        check_probability(list, o.dropout) == CUP_OK) {
        layer->dropout = o.dropout;
        layer->rms = o.rmsnorm;
        if (tensors)
            take_tensors(layer, list, &t, heads, &o);
        else
            cup__fail(&c->error, CUP_ARGUMENT, "transformer under \"%s\": its tensors are NULL",
                      cup__parameters_prefix(list));
    }
    return cup__layer_end(layer, sizeof *layer);
}

/* The norm of x + delta, where delta may be NULL; *sum becomes x + delta. Dropout by itself and not
 * together with the sum, because sum and norm together are worth more: backward then adds the two
 * gradients of the sum on the way. */
static cup_tensor *add_norm(const cup_transformer_layer *layer, cup_context *c, bool second,
                            cup_tensor *x, cup_tensor *delta, cup_tensor **sum)
{
    const cup_layernorm_layer *norm = second ? &layer->norm2 : &layer->norm1;
    const cup_rmsnorm_layer *rms = second ? &layer->rmsnorm2 : &layer->rmsnorm1;
    cup_tensor *y = NULL;
    *sum = x;
    if (!delta)
        return layer->rms ? cup_rmsnorm_layer_call(rms, x) : cup_layernorm_layer_call(norm, x);
    delta = drop(&layer->layer, c, delta, layer->dropout);
    if (layer->rms)
        cup_add_rmsnorm(c, delta, x, rms->weight, rms->epsilon, &y, sum);
    else
        cup_add_layernorm(c, delta, x, norm->weight, norm->bias, norm->epsilon, &y, sum);
    return y;
}

/* The block; with `past`, behind what was read before. Nothing is kept of it but by the tape. */
static cup_tensor *pass(const cup_transformer_layer *layer, cup_tensor *x, cup_tensor **delta,
                        const reading *past)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    cup_tensor *none = NULL;
    delta = delta ? delta : &none;
    if (!c)
        return *delta = NULL;
    cup_scope_open(c);
    cup_tensor *y = add_norm(layer, c, false, x, *delta, &x);
    *delta = past ? read_attention(&layer->attention, y, past)
                  : cup_attention_layer_call(&layer->attention, y);
    y = add_norm(layer, c, true, x, *delta, &x);
    *delta = cup_mlp_layer_call(&layer->mlp, y);
    bool whole = x && *delta;
    if (cup_scope_return_all(c, (cup_tensor *[]){x, *delta}, 2) == CUP_OK && whole)
        return x;
    return *delta = NULL;
}

cup_tensor *cup_transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                       cup_tensor **delta)
{
    return pass(layer, x, delta, NULL);
}

static cup_tensor *read_past(const cup_transformer_layer *layer, cup_tensor *x, cup_tensor **delta,
                             const reading *past)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c || check_past(layer, c, x, past) != CUP_OK)
        return NULL;
    bool was = cup_grad_recording(c, false);
    x = pass(layer, x, delta, past);
    cup_grad_recording(c, was);
    return x;
}

cup_tensor *cup_transformer_layer_read(const cup_transformer_layer *layer, cup_tensor *x,
                                       cup_tensor **delta, cup_tensor *keys, cup_tensor *values,
                                       int64_t used)
{
    return read_past(layer, x, delta, &(reading){keys, values, used, NULL});
}

cup_tensor *cup_transformer_layer_read_at(const cup_transformer_layer *layer, cup_tensor *x,
                                          cup_tensor **delta, cup_tensor *keys,
                                          cup_tensor *values, cup_tensor *position)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (c && !position)
        cup__fail(&c->error, CUP_ARGUMENT, "transformer: the position to read at is NULL");
    return c && position ? read_past(layer, x, delta, &(reading){keys, values, 0, position}) : NULL;
}

cup_tensor *cup_transformer_layer_call(const cup_transformer_layer *layer, cup_tensor *x)
{
    cup_tensor *delta = NULL;
    x = pass(layer, x, &delta, NULL);
    if (!x)
        return NULL;
    cup_context *c = cup__parameters_context(layer->layer.parameters);
    return cup_add(c, x, drop(&layer->layer, c, delta, layer->dropout));
}
