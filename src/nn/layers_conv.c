/* Convolutions as layers. */
#ifdef CUP_LAYERS_H
/* Images x [N,in,H,W] to activation(cup_conv2d of them) [N,out,..]; a kernel is one size, or height
 * and width. "weight" [out,in/groups,KH,KW] has weight decay; "bias" [out] begins with zeros. All
 * activations but SWIGLU. Images that lie as [N,H,W,C] are taken as cup_conv2d takes them. */
typedef struct cup_conv2d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[2], padding[4], dilation[2];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv2d_layer;

typedef struct cup_conv2d_layer_options {
    size_t size;
    cup_activation activation;
    cup_ints stride, padding, dilation; /* see cup_conv2d; none: 1, 0 and 1 */
    bool same;
    int groups;                  /* 0: 1 */
    bool no_bias;
    cup_initializer initializer; /* of the weight, see cup_linear_layer_options */
    double deviation, gain;
    cup_padding_mode padding_mode; /* what the padding consists of */
} cup_conv2d_layer_options;

CUP_API cup_status cup_conv2d_layer_new(cup_conv2d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const int64_t *kernel, int kernel_count,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv2d_layer_call(const cup_conv2d_layer *layer, cup_tensor *x);

/* With a residual of the shape of the result, which is added before the activation; or NULL. */
CUP_API cup_tensor *cup_conv2d_layer_join(const cup_conv2d_layer *layer, cup_tensor *x,
                                          cup_tensor *residual);

/* The same of images whose channels lie last: x is [N,H,W,in], the result [N,H,W,out], and so the
 * residual. */
CUP_API cup_tensor *cup_conv2d_layer_last(const cup_conv2d_layer *layer, cup_tensor *x,
                                          cup_tensor *residual);
#endif
#include <string.h>

#include "base/options.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/context.h"

CUP__LAYER_CALL(conv2d)

static cup_status refuse(cup_parameters *list, const char *words)
{
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "layer under \"%s\": %s", cup__parameters_prefix(list), words);
}

/* One number for both sides or, for padding, all four; or one each. */
static cup_status take(cup_parameters *list, int64_t *to, int most, const cup_ints *from,
                       int64_t usual)
{
    if (from->count < 0 || from->count > most || from->count == 3 ||
        (from->count && !from->values))
        return refuse(list, "stride and dilation have one number or two, padding one, two or four");
    for (int i = 0; i < most; i++)
        to[i] = from->count == 0 ? usual
                                 : from->values[from->count == most ? i
                                                 : from->count == 1  ? 0
                                                                     : i / 2];
    return CUP_OK;
}

static cup_status take_options(cup_conv2d_layer *layer, cup_parameters *list,
                               const cup_conv2d_layer_options *o)
{
    if ((int)o->activation < 0 || o->activation > CUP_ACTIVATION_SIGMOID ||
        o->activation == CUP_ACTIVATION_SWIGLU)
        return refuse(list, "its activation is none that an image can have");
    CUP_TRY(take(list, layer->stride, 2, &o->stride, 1));
    CUP_TRY(take(list, layer->dilation, 2, &o->dilation, 1));
    CUP_TRY(take(list, layer->padding, 4, &o->padding, 0));
    layer->activation = o->activation;
    layer->same = o->same;
    layer->groups = o->groups ? o->groups : 1;
    layer->padding_mode = o->padding_mode;
    return CUP_OK;
}

static void make_tensors(cup_conv2d_layer *layer, cup_parameters *list, const int64_t shape[4],
                         const cup_conv2d_layer_options *o)
{
    cup_parameter_options weight = {.size = sizeof weight,
                                    .initializer = o->initializer,
                                    .deviation = o->deviation,
                                    .gain = o->gain,
                                    .decay = true,
                                    .hidden = true};
    if (o->initializer == CUP_INITIALIZER_DEFAULT) {
        bool rectifies =
            o->activation >= CUP_ACTIVATION_RELU && o->activation <= CUP_ACTIVATION_SILU;
        weight.initializer = CUP_INITIALIZER_KAIMING_NORMAL;
        weight.gain = o->gain > 0 || rectifies ? o->gain : 1;
    }
    layer->weight = cup_parameter_new(list, "weight", 4, shape, &weight);
    if (!o->no_bias)
        layer->bias = cup_parameter_new(
            list, "bias", 1, shape,
            CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ZEROS));
}

cup_status cup_conv2d_layer_new(cup_conv2d_layer *layer, cup_parameters *list, const char *name,
                                int64_t in, int64_t out, const int64_t *kernel, int kernel_count,
                                const cup_conv2d_layer_options *options)
{
    cup_conv2d_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_conv2d));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "conv2d", &o, sizeof o, options) != CUP_OK ||
        cup__layer_size(list, "in", in) != CUP_OK || cup__layer_size(list, "out", out) != CUP_OK)
        return cup__layer_end(layer, sizeof *layer);
    if (!kernel || kernel_count < 1 || kernel_count > 2)
        refuse(list, "a kernel has one size, or a height and a width");
    else if (cup__layer_size(list, "kernel", kernel[0]) == CUP_OK &&
             cup__layer_size(list, "kernel", kernel[kernel_count - 1]) == CUP_OK &&
             take_options(layer, list, &o) == CUP_OK) {
        const int64_t shape[] = {out, in / (layer->groups > 0 ? layer->groups : 1), kernel[0],
                                 kernel[kernel_count - 1]};
        if (layer->groups < 1 || in % layer->groups || out % layer->groups)
            refuse(list, "its channels, in and out, do not divide into the groups");
        else
            make_tensors(layer, list, shape, &o);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_conv2d_layer_call(const cup_conv2d_layer *layer, cup_tensor *x)
{
    return cup_conv2d_layer_join(layer, x, NULL);
}

cup_tensor *cup_conv2d_layer_join(const cup_conv2d_layer *layer, cup_tensor *x,
                                  cup_tensor *residual)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    return cup_conv2d(c, x, layer->weight, layer->bias,
                      CUP_OPTIONS(cup_conv2d_options, .stride = {layer->stride, 2},
                                  .padding = {layer->padding, layer->same ? 0 : 4},
                                  .same = layer->same, .dilation = {layer->dilation, 2},
                                  .groups = layer->groups, .padding_mode = layer->padding_mode,
                                  .residual = residual, .activation = layer->activation));
}

static bool is_product(const cup_conv2d_layer *l)
{
    const int64_t *p = l->padding, *size = l->weight->shape;
    return size[2] * size[3] == 1 && l->stride[0] == 1 && l->stride[1] == 1 && l->groups == 1 &&
           !(p[0] | p[1] | p[2] | p[3]) && l->activation == CUP_ACTIVATION_NONE;
}

/* A window of one place is a product of all places, whose gradient is added to another in place. */
cup_tensor *cup_conv2d_layer_last(const cup_conv2d_layer *layer, cup_tensor *x,
                                  cup_tensor *residual)
{
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    if (!residual && is_product(layer))
        return cup_linear(c, x, cup_reshape(c, layer->weight, 2, layer->weight->shape),
                          layer->bias);
    residual = residual ? cup_permute(c, residual, first, 4) : NULL;
    x = cup_conv2d_layer_join(layer, cup_permute(c, x, first, 4), residual);
    return cup_permute(c, x, last, 4);
}
