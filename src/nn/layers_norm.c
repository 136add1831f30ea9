/* Norms. */
#ifdef CUP_LAYERS_H
/* Options of all norms; each takes those it has. */
typedef struct cup_norm_layer_options {
    size_t size;
    double epsilon;     /* 0: 1e-5 */
    bool no_bias;       /* not of rmsnorm, which has none */
    bool channels_last; /* of batchnorm and groupnorm: x is [N,..,C] and not [N,C,..] */
    double momentum;    /* of batchnorm: how far the running statistics move; 0: 0.1 */
} cup_norm_layer_options;

/* Norms of the last dimension, of `width`: see cup_layernorm and cup_rmsnorm. "weight" begins with
 * ones, "bias" with zeros, as in those below. Those of tensors that are there already are as
 * cup_linear_layer_of, with an epsilon of 0 for 1e-5. */
typedef struct cup_layernorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias;
    double epsilon;
} cup_layernorm_layer;

CUP_API cup_status cup_layernorm_layer_new(cup_layernorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t width,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_layernorm_layer_call(const cup_layernorm_layer *layer, cup_tensor *x);

CUP_API cup_status cup_layernorm_layer_of(cup_layernorm_layer *layer, cup_parameters *list,
                                          cup_tensor *weight, cup_tensor *bias, double epsilon);

typedef struct cup_rmsnorm_layer {
    cup_layer layer;
    cup_tensor *weight;
    double epsilon;
} cup_rmsnorm_layer;

CUP_API cup_status cup_rmsnorm_layer_new(cup_rmsnorm_layer *layer, cup_parameters *list,
                                         const char *name, int64_t width,
                                         const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_rmsnorm_layer_call(const cup_rmsnorm_layer *layer, cup_tensor *x);

CUP_API cup_status cup_rmsnorm_layer_of(cup_rmsnorm_layer *layer, cup_parameters *list,
                                        cup_tensor *weight, double epsilon);

/* See cup_batchnorm. "running_mean" and "running_var" are buffers in f32, or f64 in a list of f64:
 * calls in training move them, and others use them. Of a batch that several processes share see
 * cup_parameters_together. */
typedef struct cup_batchnorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias, *running_mean, *running_var;
    double epsilon, momentum;
    int axis;
} cup_batchnorm_layer;

CUP_API cup_status cup_batchnorm_layer_new(cup_batchnorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t channels,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_batchnorm_layer_call(const cup_batchnorm_layer *layer, cup_tensor *x);

/* With what stands behind it in one pass: the layer's result plus a residual of the shape of x,
 * which may be NULL, and where `relu` is set 0 for what of that is below 0. */
CUP_API cup_tensor *cup_batchnorm_layer_join(const cup_batchnorm_layer *layer, cup_tensor *x,
                                             cup_tensor *residual, bool relu);

/* The layer behind a convolution, as cup_batchnorm_layer_join of what that makes of x: in training
 * a GPU gathers the statistics while the convolution writes its result, of f16 and bf16 with whole
 * lines of 128 places, so that it is read once. x lies as this layer takes it: [N,in,H,W], or with
 * channels_last [N,H,W,in]. */
CUP_API cup_tensor *cup_batchnorm_layer_behind(const cup_batchnorm_layer *layer,
                                               const cup_conv2d_layer *conv, cup_tensor *x,
                                               cup_tensor *residual, bool relu);

/* For inference: the convolution as it is with this layer behind it out of training, whose running
 * statistics and weights become part of its weight and of a bias. Both are then tensors of the
 * caller, who frees them behind the last call; those of the list stay as they are. */
CUP_API cup_status cup_batchnorm_layer_fold(const cup_batchnorm_layer *layer,
                                            cup_conv2d_layer *conv);

/* See cup_groupnorm; the groups divide the channels. */
typedef struct cup_groupnorm_layer {
    cup_layer layer;
    cup_tensor *weight, *bias;
    double epsilon;
    int groups, axis;
} cup_groupnorm_layer;

CUP_API cup_status cup_groupnorm_layer_new(cup_groupnorm_layer *layer, cup_parameters *list,
                                           const char *name, int64_t channels, int64_t groups,
                                           const cup_norm_layer_options *options);
CUP_API cup_tensor *cup_groupnorm_layer_call(const cup_groupnorm_layer *layer, cup_tensor *x);
#endif
#include "base/options.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/context.h"
#include "tensor/moments.h"
#include "tensor/tensor.h"

#define EPSILON 1e-5
#define MOMENTUM 0.1

CUP__LAYER_CALL(layernorm)
CUP__LAYER_CALL(rmsnorm)
CUP__LAYER_CALL(batchnorm)
CUP__LAYER_CALL(groupnorm)

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
        layer->weight = cup__layer_vector(list, "weight", width, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = cup__layer_vector(list, "bias", width, CUP_INITIALIZER_ZEROS);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup_layernorm_layer_of(cup_layernorm_layer *layer, cup_parameters *list,
                                  cup_tensor *weight, cup_tensor *bias, double epsilon)
{
    CUP_TRY(cup__layer_begin_of(layer, sizeof *layer, list, weight, call_layernorm));
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
        layer->weight = cup__layer_vector(list, "weight", width, CUP_INITIALIZER_ONES);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup_rmsnorm_layer_of(cup_rmsnorm_layer *layer, cup_parameters *list, cup_tensor *weight,
                                double epsilon)
{
    CUP_TRY(cup__layer_begin_of(layer, sizeof *layer, list, weight, call_rmsnorm));
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
        layer->weight = cup__layer_vector(list, "weight", channels, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = cup__layer_vector(list, "bias", channels, CUP_INITIALIZER_ZEROS);
        layer->running_mean = statistic(list, "running_mean", channels, CUP_INITIALIZER_ZEROS);
        layer->running_var = statistic(list, "running_var", channels, CUP_INITIALIZER_ONES);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_batchnorm_layer_call(const cup_batchnorm_layer *layer, cup_tensor *x)
{
    return cup_batchnorm_layer_join(layer, x, NULL, false);
}

static cup_tensor *joined(cup_context *c, cup_tensor *y, cup_tensor *residual, bool relu)
{
    if (residual)
        y = cup_add(c, y, residual);
    return relu ? cup_relu(c, y) : y;
}

cup_tensor *cup_batchnorm_layer_join(const cup_batchnorm_layer *layer, cup_tensor *x,
                                     cup_tensor *residual, bool relu)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    bool train = cup__parameters_is_training(layer->layer.parameters);
    int axis = layer->axis < 0 ? x->ndim - 1 : layer->axis;
    bool fits = x->ndim > 1 && axis < x->ndim && x->shape[axis] == layer->weight->count &&
                (x->dtype == CUP_F64) == (layer->running_mean->dtype == CUP_F64);
    if (train && fits && cup__parameters_sharing(layer->layer.parameters))
        return joined(c, cup__batchnorm_together(layer, c, x, axis), residual, relu);
    return cup_batchnorm(c, x, layer->weight, layer->bias, layer->running_mean,
                         layer->running_var, layer->axis,
                         CUP_OPTIONS(cup_batchnorm_options, .train = train,
                                     .eps = layer->epsilon, .momentum = layer->momentum,
                                     .relu = relu, .residual = residual));
}

cup_tensor *cup_batchnorm_layer_behind(const cup_batchnorm_layer *layer,
                                       const cup_conv2d_layer *conv, cup_tensor *x,
                                       cup_tensor *residual, bool relu)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c || !cup__layer_context((const cup_layer *)conv, x))
        return NULL;
    cup_parameters *list = layer->layer.parameters;
    bool gathers = cup__parameters_is_training(list) && !cup__parameters_sharing(list);
    if (gathers)
        cup__moments_begin(c);
    cup_tensor *y =
        layer->axis < 0 ? cup_conv2d_layer_last(conv, x, NULL) : cup_conv2d_layer_call(conv, x);
    cup__moments_made(c);
    y = cup_batchnorm_layer_join(layer, y, residual, relu);
    cup__moments_end(c);
    return y;
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
        layer->weight = cup__layer_vector(list, "weight", channels, CUP_INITIALIZER_ONES);
        if (!o.no_bias)
            layer->bias = cup__layer_vector(list, "bias", channels, CUP_INITIALIZER_ZEROS);
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
