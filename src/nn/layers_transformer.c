/* Layers made of layers: attention, MLP, the block of a transformer. */
#include <math.h>

#include "base/options.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/context.h"

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

/* `shrink` makes the weight smaller that leads back to the residual stream. */
static cup_status make_attention(cup_attention_layer *layer, cup_parameters *list, int64_t width,
                                 int64_t heads, cup_attention_layer_options o, double shrink)
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
    cup_linear_layer_options linear = {.size = sizeof linear,
                                       .no_bias = o.no_bias,
                                       .initializer = o.initializer,
                                       .deviation = o.deviation,
                                       .gain = o.gain};
    int64_t all = (heads + 2 * o.kv_heads) * layer->head_size;
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

cup_tensor *cup_transformer_layer_call(const cup_transformer_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    cup_tensor *y = layer->rms ? cup_rmsnorm_layer_call(&layer->rmsnorm1, x)
                               : cup_layernorm_layer_call(&layer->norm1, x);
    cup_tensor *delta =
        drop(&layer->layer, c, cup_attention_layer_call(&layer->attention, y), layer->dropout);
    y = NULL;
    if (layer->rms)
        cup_add_rmsnorm(c, delta, x, layer->rmsnorm2.weight, layer->rmsnorm2.epsilon, &y, &x);
    else
        cup_add_layernorm(c, delta, x, layer->norm2.weight, layer->norm2.bias,
                          layer->norm2.epsilon, &y, &x);
    delta = drop(&layer->layer, c, cup_mlp_layer_call(&layer->mlp, y), layer->dropout);
    return cup_add(c, x, delta);
}
