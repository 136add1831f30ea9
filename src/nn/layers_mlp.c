/* Two linear layers. */
#ifdef CUP_LAYERS_H
/* Two linear layers, "up" from width to hidden with the activation, and "down" back. In a list that
 * several processes share out each has an equal part of what is hidden. */
typedef struct cup_mlp_layer {
    cup_layer layer;
    cup_linear_layer up, down;
} cup_mlp_layer;

typedef struct cup_mlp_layer_options {
    size_t size;
    cup_activation activation; /* NONE: GELU */
    bool no_bias;
    cup_initializer initializer; /* of both weights, see cup_linear_layer_options */
    double deviation, gain;
} cup_mlp_layer_options;

CUP_API cup_status cup_mlp_layer_new(cup_mlp_layer *layer, cup_parameters *list, const char *name,
                                     int64_t width, int64_t hidden,
                                     const cup_mlp_layer_options *options);
CUP_API cup_tensor *cup_mlp_layer_call(const cup_mlp_layer *layer, cup_tensor *x);
#endif
#include "base/options.h"
#include "nn/functions_fp8.h"
#include "nn/layers.h"
#include "tensor/context.h"

CUP__LAYER_CALL(mlp)

cup_status cup__mlp_layer_make(cup_mlp_layer *layer, cup_parameters *list, int64_t width,
                               int64_t hidden, const cup_mlp_layer_options *o, double shrink)
{
    cup_linear_layer_options linear = {
        .size = sizeof linear,
        .activation = o->activation == CUP_ACTIVATION_NONE ? CUP_ACTIVATION_GELU : o->activation,
        .no_bias = o->no_bias,
        .initializer = o->initializer,
        .deviation = o->deviation,
        .gain = o->gain,
        .part = CUP_PART_ROWS};
    CUP_TRY(cup_linear_layer_new(&layer->up, list, "up", width, hidden, &linear));
    linear.activation = CUP_ACTIVATION_NONE;
    linear.part = CUP_PART_COLUMNS;
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
        cup__mlp_layer_make(layer, list, width, hidden, &o, 1);
    return cup__layer_end(layer, sizeof *layer);
}

/* Whether both layers multiply in 8 bits, with gelu and nothing else between, and each process has
 * all of them. */
static bool is_fp8(const cup_mlp_layer *layer)
{
    const cup_parameters *list = layer->layer.parameters;
    const cup_linear_layer *up = &layer->up, *down = &layer->down;
    return up->activation == CUP_ACTIVATION_GELU && down->activation == CUP_ACTIVATION_NONE &&
           cup__parameters_is_fp8(list, up->weight) && cup__parameters_is_fp8(list, down->weight) &&
           !up->lora && !down->lora && !cup__parameters_part(list, down->weight);
}

cup_tensor *cup_mlp_layer_call(const cup_mlp_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    if (is_fp8(layer))
        return cup__mlp_fp8(c, x, &layer->up, &layer->down);
    return cup_linear_layer_call(&layer->down, cup_linear_layer_call(&layer->up, x));
}
