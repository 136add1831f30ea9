/* Layers of one or two tensors, dropout, and sequences. */
#include "nn/layers.h"

#include <string.h>

#include "base/options.h"
#include "cupola/ops.h"
#include "tensor/context.h"

#define EPSILON 1e-5
#define MOMENTUM 0.1
#define SIZE_MOST ((int64_t)1 << 40)

cup_status cup__layer_begin(void *layer, size_t bytes, cup_parameters *list,
                            cup_tensor *(*call)(const cup_layer *, cup_tensor *))
{
    if (layer)
        memset(layer, 0, bytes);
    if (!list)
        return CUP_ARGUMENT;
    cup_context *c = cup__parameters_context(list);
    if (c->error.status != CUP_OK)
        return c->error.status;
    if (!layer)
        return cup__fail(&c->error, CUP_ARGUMENT, "layer: the struct to make it in is NULL");
    *(cup_layer *)layer = (cup_layer){call, list};
    return CUP_OK;
}

cup_status cup__layer_end(void *layer, size_t bytes)
{
    cup_status status = cup__parameters_context(((cup_layer *)layer)->parameters)->error.status;
    if (status != CUP_OK)
        memset(layer, 0, bytes);
    return status;
}

cup_status cup__layer_size(cup_parameters *list, const char *what, int64_t size)
{
    if (size >= 1 && size <= SIZE_MOST)
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "layer under \"%s\": %s must be at least 1, not %lld",
                     cup__parameters_prefix(list), what, (long long)size);
}

cup_context *cup__layer_context(const cup_layer *layer, cup_tensor *x)
{
    if (!x)
        return NULL;
    if (layer && layer->parameters)
        return cup__parameters_context(layer->parameters);
    cup__fail(&cup_tensor_context(x)->error, CUP_STATE,
              "layer: it was not made, or could not be; see what its cup_X_layer_new said");
    return NULL;
}

cup_tensor *cup_layer_call(const cup_layer *layer, cup_tensor *x)
{
    return cup__layer_context(layer, x) ? layer->call(layer, x) : NULL;
}

CUP__LAYER_CALL(linear)
CUP__LAYER_CALL(embedding)
CUP__LAYER_CALL(layernorm)
CUP__LAYER_CALL(rmsnorm)
CUP__LAYER_CALL(batchnorm)
CUP__LAYER_CALL(groupnorm)
CUP__LAYER_CALL(dropout)
CUP__LAYER_CALL(sequence)

static cup_tensor *vector(cup_parameters *list, const char *name, int64_t size,
                          cup_initializer initializer)
{
    return cup_parameter_new(list, name, 1, &size,
                             CUP_OPTIONS(cup_parameter_options, .initializer = initializer));
}

static void make_linear(cup_linear_layer *layer, cup_parameters *list, int64_t in, int64_t out,
                        const cup_linear_layer_options *o)
{
    cup_parameter_options weight = {.size = sizeof weight,
                                    .initializer = o->initializer,
                                    .deviation = o->deviation,
                                    .gain = o->gain,
                                    .decay = true,
                                    .hidden = !o->outer};
    if (o->initializer == CUP_INITIALIZER_DEFAULT) {
        bool rectifies =
            o->activation >= CUP_ACTIVATION_RELU && o->activation <= CUP_ACTIVATION_SWIGLU;
        weight.initializer = CUP_INITIALIZER_KAIMING_NORMAL;
        weight.gain = o->gain > 0 || rectifies ? o->gain : 1;
    }
    int64_t rows = o->activation == CUP_ACTIVATION_SWIGLU ? 2 * out : out;
    layer->activation = o->activation;
    layer->weight = cup_parameter_new(list, "weight", 2, (int64_t[]){rows, in}, &weight);
    if (!o->no_bias)
        layer->bias = vector(list, "bias", rows, CUP_INITIALIZER_ZEROS);
}

cup_status cup_linear_layer_new(cup_linear_layer *layer, cup_parameters *list, const char *name,
                                int64_t in, int64_t out, const cup_linear_layer_options *options)
{
    cup_linear_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_linear));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "linear", &o, sizeof o, options) == CUP_OK &&
        cup__layer_size(list, "in", in) == CUP_OK && cup__layer_size(list, "out", out) == CUP_OK) {
        if ((int)o.activation < 0 || o.activation > CUP_ACTIVATION_SIGMOID)
            cup__fail(&c->error, CUP_ARGUMENT, "layer under \"%s\": activation %d is none",
                      cup__parameters_prefix(list), (int)o.activation);
        else
            make_linear(layer, list, in, out, &o);
    }
    return cup__layer_end(layer, sizeof *layer);
}

/* Begins a layer of tensors that are there; fails without the first of them. */
static cup_status begin_of(void *layer, size_t bytes, cup_parameters *list, cup_tensor *weight,
                           cup_tensor *(*call)(const cup_layer *, cup_tensor *))
{
    CUP_TRY(cup__layer_begin(layer, bytes, list, call));
    if (!weight)
        cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                  "layer under \"%s\": its weight is NULL", cup__parameters_prefix(list));
    return cup__layer_end(layer, bytes);
}

cup_status cup_linear_layer_of(cup_linear_layer *layer, cup_parameters *list, cup_tensor *weight,
                               cup_tensor *bias, cup_activation activation)
{
    CUP_TRY(begin_of(layer, sizeof *layer, list, weight, call_linear));
    layer->weight = weight;
    layer->bias = bias;
    layer->activation = activation;
    return CUP_OK;
}

cup_tensor *cup_linear_layer_call(const cup_linear_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    switch (layer->activation) {
    case CUP_ACTIVATION_RELU:
        return cup_linear_relu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_GELU:
        return cup_linear_gelu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_SILU:
        return cup_linear_silu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_SWIGLU:
        return cup_linear_swiglu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_TANH:
        return cup_tanh(c, cup_linear(c, x, layer->weight, layer->bias));
    case CUP_ACTIVATION_SIGMOID:
        return cup_sigmoid(c, cup_linear(c, x, layer->weight, layer->bias));
    case CUP_ACTIVATION_NONE:
        break;
    }
    return cup_linear(c, x, layer->weight, layer->bias);
}

cup_status cup_embedding_layer_new(cup_embedding_layer *layer, cup_parameters *list,
                                   const char *name, int64_t count, int64_t width,
                                   const cup_embedding_layer_options *options)
{
    cup_embedding_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_embedding));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "embedding", &o, sizeof o, options) == CUP_OK &&
        cup__layer_size(list, "count", count) == CUP_OK &&
        cup__layer_size(list, "width", width) == CUP_OK)
        layer->weight = cup_parameter_new(
            list, "weight", 2, (int64_t[]){count, width},
            CUP_OPTIONS(cup_parameter_options, .initializer = o.initializer,
                        .deviation = o.deviation, .gain = o.gain, .decay = true));
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_embedding_layer_call(const cup_embedding_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    return c ? cup_embedding(c, layer->weight, x) : NULL;
}

/* The options with their defaults, checked. */
static cup_status take_norm(cup_parameters *list, const char *what, int64_t width,
                            cup_norm_layer_options *o, const cup_norm_layer_options *options)
{
    cup_context *c = cup__parameters_context(list);
    CUP_TRY(cup__options_take(&c->error, what, o, sizeof *o, options));
    o->epsilon = o->epsilon == 0 ? EPSILON : o->epsilon;
    o->momentum = o->momentum == 0 ? MOMENTUM : o->momentum;
    if (!(o->epsilon > 0 && o->epsilon < 1) || !(o->momentum > 0 && o->momentum <= 1))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "%s under \"%s\": epsilon must be between 0 and 1 and momentum at most 1, "
                         "not %g and %g",
                         what, cup__parameters_prefix(list), o->epsilon, o->momentum);
    return cup__layer_size(list, "width", width);
}

cup_status cup_layernorm_layer_new(cup_layernorm_layer *layer, cup_parameters *list,
                                   const char *name, int64_t width,
                                   const cup_norm_layer_options *options)
{
    cup_norm_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_layernorm));
    if (take_norm(list, "layernorm", width, &o, options) == CUP_OK) {
        layer->epsilon = o.epsilon;
        layer->weight = vector(list, "weight", width, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = vector(list, "bias", width, CUP_INITIALIZER_ZEROS);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup_layernorm_layer_of(cup_layernorm_layer *layer, cup_parameters *list,
                                  cup_tensor *weight, cup_tensor *bias, double epsilon)
{
    CUP_TRY(begin_of(layer, sizeof *layer, list, weight, call_layernorm));
    layer->weight = weight;
    layer->bias = bias;
    layer->epsilon = epsilon == 0 ? EPSILON : epsilon;
    return CUP_OK;
}

cup_tensor *cup_layernorm_layer_call(const cup_layernorm_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    return c ? cup_layernorm(c, x, layer->weight, layer->bias, layer->epsilon) : NULL;
}

cup_status cup_rmsnorm_layer_new(cup_rmsnorm_layer *layer, cup_parameters *list, const char *name,
                                 int64_t width, const cup_norm_layer_options *options)
{
    cup_norm_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_rmsnorm));
    if (take_norm(list, "rmsnorm", width, &o, options) == CUP_OK) {
        layer->epsilon = o.epsilon;
        layer->weight = vector(list, "weight", width, CUP_INITIALIZER_ONES);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup_rmsnorm_layer_of(cup_rmsnorm_layer *layer, cup_parameters *list, cup_tensor *weight,
                                double epsilon)
{
    CUP_TRY(begin_of(layer, sizeof *layer, list, weight, call_rmsnorm));
    layer->weight = weight;
    layer->epsilon = epsilon == 0 ? EPSILON : epsilon;
    return CUP_OK;
}

cup_tensor *cup_rmsnorm_layer_call(const cup_rmsnorm_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    return c ? cup_rmsnorm(c, x, layer->weight, layer->epsilon) : NULL;
}

static cup_tensor *statistic(cup_parameters *list, const char *name, int64_t channels,
                             cup_initializer initializer)
{
    const char *dtype = cup__parameters_dtype(list) == CUP_F64 ? "f64" : "f32";
    return cup_parameter_new(list, name, 1, &channels,
                             CUP_OPTIONS(cup_parameter_options, .initializer = initializer,
                                         .buffer = true, .dtype = dtype));
}

cup_status cup_batchnorm_layer_new(cup_batchnorm_layer *layer, cup_parameters *list,
                                   const char *name, int64_t channels,
                                   const cup_norm_layer_options *options)
{
    cup_norm_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_batchnorm));
    if (take_norm(list, "batchnorm", channels, &o, options) == CUP_OK) {
        layer->epsilon = o.epsilon;
        layer->momentum = o.momentum;
        layer->axis = o.channels_last ? -1 : 1;
        layer->weight = vector(list, "weight", channels, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = vector(list, "bias", channels, CUP_INITIALIZER_ZEROS);
        layer->running_mean = statistic(list, "running_mean", channels, CUP_INITIALIZER_ZEROS);
        layer->running_var = statistic(list, "running_var", channels, CUP_INITIALIZER_ONES);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_batchnorm_layer_call(const cup_batchnorm_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    return c ? cup_batchnorm(
                   c, x, layer->weight, layer->bias, layer->running_mean, layer->running_var,
                   layer->axis,
                   CUP_OPTIONS(cup_batchnorm_options,
                               .train = cup__parameters_is_training(layer->layer.parameters),
                               .eps = layer->epsilon, .momentum = layer->momentum))
             : NULL;
}

cup_status cup_groupnorm_layer_new(cup_groupnorm_layer *layer, cup_parameters *list,
                                   const char *name, int64_t channels, int64_t groups,
                                   const cup_norm_layer_options *options)
{
    cup_norm_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_groupnorm));
    cup_context *c = cup__parameters_context(list);
    if (take_norm(list, "groupnorm", channels, &o, options) == CUP_OK) {
        if (groups < 1 || groups > INT32_MAX || channels % groups != 0)
            cup__fail(&c->error, CUP_ARGUMENT,
                      "groupnorm under \"%s\": %lld groups do not share %lld channels evenly",
                      cup__parameters_prefix(list), (long long)groups, (long long)channels);
        layer->epsilon = o.epsilon;
        layer->groups = (int)groups;
        layer->axis = o.channels_last ? -1 : 1;
        layer->weight = vector(list, "weight", channels, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = vector(list, "bias", channels, CUP_INITIALIZER_ZEROS);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_groupnorm_layer_call(const cup_groupnorm_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    return c ? cup_groupnorm(c, x, layer->weight, layer->bias, layer->groups, layer->axis,
                             CUP_OPTIONS(cup_groupnorm_options, .eps = layer->epsilon))
             : NULL;
}

cup_status cup_dropout_layer_new(cup_dropout_layer *layer, cup_parameters *list, double p)
{
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_dropout));
    if (!(p >= 0 && p < 1))
        cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                  "dropout under \"%s\": p must be at least 0 and below 1, not %g",
                  cup__parameters_prefix(list), p);
    layer->p = p;
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_dropout_layer_call(const cup_dropout_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    bool drops = c && layer->p > 0 && cup__parameters_is_training(layer->layer.parameters);
    return drops ? cup_dropout(c, x, layer->p) : c ? x : NULL;
}

cup_status cup_sequence_layer_new(cup_sequence_layer *layer, cup_parameters *list,
                                  const cup_layer *const *layers, int count)
{
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_sequence));
    if (count < 0 || (count > 0 && !layers))
        cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                  "sequence: there are no layers in its list of %d", count);
    layer->layers = layers;
    layer->count = count;
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_sequence_layer_call(const cup_sequence_layer *layer, cup_tensor *x)
{
    if (!cup__layer_context((const cup_layer *)layer, x))
        return NULL;
    for (int i = 0; i < layer->count; i++)
        x = cup_layer_call(layer->layers[i], x);
    return x;
}
