/* What all layers begin with; linear layers, embeddings, dropout, and sequences. */
#ifdef CUP_LAYERS_H
/* What every layer's struct begins with, one of the caller's own too: by it a sequence calls
 * layers of any kind. */
typedef struct cup_layer cup_layer;
struct cup_layer {
    cup_tensor *(*call)(const cup_layer *layer, cup_tensor *x);
    cup_parameters *parameters; /* the list it was made in */
};

/* Calls a layer of any kind: cup_layer_call(&up.layer, x). */
CUP_API cup_tensor *cup_layer_call(const cup_layer *layer, cup_tensor *x);

/* x [..,in] to activation(x weight^T + bias) [..,out]. "weight" [out,in] has weight decay and is
 * Muon's; "bias" [out] begins with zeros. */
typedef struct cup_linear_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    const struct cup_lora_layer *lora; /* what is learned beside it, or NULL; borrowed */
} cup_linear_layer;

typedef struct cup_linear_layer_options {
    size_t size;
    cup_activation activation;
    bool no_bias;
    bool outer;                  /* the first or last layer: not Muon's */
    cup_initializer initializer; /* of the weight; DEFAULT: KAIMING_NORMAL with gain sqrt(2) before
                                    relu, gelu, silu and swiglu, else 1 */
    double deviation, gain;      /* see cup_parameter_options */
    /* In a list that several processes share out, see cup_parameters_among: ROWS makes a part of
     * the features of all of x; COLUMNS takes such a part for x, and makes all of the sum, without
     * an activation. One behind the other they are one layer each on all processes. */
    cup_part part;
} cup_linear_layer_options;

CUP_API cup_status cup_linear_layer_new(cup_linear_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const cup_linear_layer_options *options);
CUP_API cup_tensor *cup_linear_layer_call(const cup_linear_layer *layer, cup_tensor *x);

/* A layer of tensors that are in the list already: under names of the caller's choice, or another
 * layer's, as output weights that are those of the embedding. The bias may be NULL. */
CUP_API cup_status cup_linear_layer_of(cup_linear_layer *layer, cup_parameters *list,
                                       cup_tensor *weight, cup_tensor *bias,
                                       cup_activation activation);

/* Ids [..], i32 or i64, to rows [..,width] of "weight" [count,width]. In a list that several
 * processes share out each may have a part of the rows, ROWS, see cup_comm_embedding. */
typedef struct cup_embedding_layer {
    cup_layer layer;
    cup_tensor *weight;
} cup_embedding_layer;

typedef struct cup_embedding_layer_options {
    size_t size;
    cup_initializer initializer; /* DEFAULT: NORMAL */
    double deviation, gain;
    cup_part part;
} cup_embedding_layer_options;

CUP_API cup_status cup_embedding_layer_new(cup_embedding_layer *layer, cup_parameters *list,
                                           const char *name, int64_t count, int64_t width,
                                           const cup_embedding_layer_options *options);
CUP_API cup_tensor *cup_embedding_layer_call(const cup_embedding_layer *layer, cup_tensor *x);

/* Drops elements with probability p, from 0 to below 1, while its list is in training; see
 * cup_dropout. It has no tensors and no name. */
typedef struct cup_dropout_layer {
    cup_layer layer;
    double p;
} cup_dropout_layer;

CUP_API cup_status cup_dropout_layer_new(cup_dropout_layer *layer, cup_parameters *list, double p);
CUP_API cup_tensor *cup_dropout_layer_call(const cup_dropout_layer *layer, cup_tensor *x);

/* Layers one after another, each called with what the one before it gave. The array and the
 * layers are borrowed, and stay where they are while the sequence is used. It has no tensors and
 * no name of its own. */
typedef struct cup_sequence_layer {
    cup_layer layer;
    const cup_layer *const *layers;
    int count;
} cup_sequence_layer;

CUP_API cup_status cup_sequence_layer_new(cup_sequence_layer *layer, cup_parameters *list,
                                          const cup_layer *const *layers, int count);
CUP_API cup_tensor *cup_sequence_layer_call(const cup_sequence_layer *layer, cup_tensor *x);
#endif
#include "nn/layers.h"

#include <string.h>

#include "base/options.h"
#include "cupola/functions.h"
#include "cupola/ops.h"
#include "tensor/context.h"

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
CUP__LAYER_CALL(dropout)
CUP__LAYER_CALL(sequence)

cup_tensor *cup__layer_vector(cup_parameters *list, const char *name, int64_t size,
                              cup_initializer initializer)
{
    return cup_parameter_new(list, name, 1, &size,
                             CUP_OPTIONS(cup_parameter_options, .initializer = initializer));
}

/* What stands one behind the other among a layer's outputs: as the caller says, or a gate and a
 * value, or one. */
static void set_sections(cup_activation activation, int64_t out, const int64_t *given,
                                int64_t to[3])
{
    bool gated = activation == CUP_ACTIVATION_SWIGLU;
    for (int i = 0; i < 3; i++)
        to[i] = given ? given[i] : i < 1 + gated ? out : 0;
}

static void make_linear(cup_linear_layer *layer, cup_parameters *list, int64_t in, int64_t out,
                        const cup_linear_layer_options *o, const int64_t *sections)
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
    cup_parameter_options bias = {.size = sizeof bias, .initializer = CUP_INITIALIZER_ZEROS};
    weight.part = o->part;
    if (o->part == CUP_PART_ROWS) {
        set_sections(o->activation, out, sections, weight.sections);
        bias.part = CUP_PART_ROWS;
        memcpy(bias.sections, weight.sections, sizeof bias.sections);
    }
    layer->activation = o->activation;
    layer->weight = cup_parameter_new(list, "weight", 2, (int64_t[]){rows, in}, &weight);
    if (!o->no_bias)
        layer->bias = cup_parameter_new(list, "bias", 1, &rows, &bias);
}

static cup_status check_linear(cup_parameters *list, const cup_linear_layer_options *o)
{
    cup_context *c = cup__parameters_context(list);
    if ((int)o->activation < 0 || o->activation > CUP_ACTIVATION_SIGMOID)
        return cup__fail(&c->error, CUP_ARGUMENT, "layer under \"%s\": activation %d is none",
                         cup__parameters_prefix(list), (int)o->activation);
    if ((int)o->part < 0 || o->part > CUP_PART_COLUMNS)
        return cup__fail(&c->error, CUP_ARGUMENT, "layer under \"%s\": there is no part %d",
                         cup__parameters_prefix(list), (int)o->part);
    if (o->part == CUP_PART_COLUMNS && o->activation != CUP_ACTIVATION_NONE)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "layer under \"%s\": what takes a part of the features sums over "
                         "processes, behind which an activation is a call of its own",
                         cup__parameters_prefix(list));
    return CUP_OK;
}

cup_status cup_linear_layer_new(cup_linear_layer *layer, cup_parameters *list, const char *name,
                                int64_t in, int64_t out, const cup_linear_layer_options *options)
{
    return cup__linear_layer_make(layer, list, name, in, out, options, NULL);
}

cup_status cup__linear_layer_make(cup_linear_layer *layer, cup_parameters *list, const char *name,
                                  int64_t in, int64_t out,
                                  const cup_linear_layer_options *options,
                                  const int64_t *sections)
{
    cup_linear_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_linear));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "linear", &o, sizeof o, options) == CUP_OK &&
        cup__layer_size(list, "in", in) == CUP_OK && cup__layer_size(list, "out", out) == CUP_OK &&
        check_linear(list, &o) == CUP_OK)
        make_linear(layer, list, in, out, &o, sections);
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup__layer_begin_of(void *layer, size_t bytes, cup_parameters *list,
                               cup_tensor *weight,
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
    CUP_TRY(cup__layer_begin_of(layer, sizeof *layer, list, weight, call_linear));
    layer->weight = weight;
    layer->bias = bias;
    layer->activation = activation;
    return CUP_OK;
}

/* In training by codes of 8 bits where the list says so. */
static cup_tensor *multiply(const cup_linear_layer *layer, cup_context *c, cup_tensor *x,
                            cup_tensor *bias)
{
    return cup__parameters_is_fp8(layer->layer.parameters, layer->weight)
               ? cup_linear_fp8(c, x, layer->weight, bias)
               : cup_linear(c, x, layer->weight, bias);
}

/* Each process has the products of its part of the features. */
static cup_tensor *sum_parts(const cup_linear_layer *layer, cup_context *c,
                             const cup__portion *part, cup_tensor *x)
{
    cup_tensor *y = multiply(layer, c, x, NULL);
    if (layer->lora && y)
        y = cup_lora_layer_add(layer->lora, x, y);
    y = cup__rows_sum(layer->layer.parameters, part->comm, y);
    return y && layer->bias ? cup_add(c, y, layer->bias) : y;
}

/* silu(gate) up of halves of the last dimension that lie side by side. */
static cup_tensor *gated(cup_context *c, cup_tensor *x)
{
    cup_tensor *halves[2] = {NULL};
    int64_t width = x->shape[x->ndim - 1] / 2;
    cup_split_along(c, x, (int64_t[]){width, width}, 2, -1, halves);
    return cup_swiglu(c, halves[0], halves[1]);
}

cup_tensor *cup__layer_activate(cup_context *c, cup_activation activation, cup_tensor *x)
{
    if (!x)
        return NULL;
    switch (activation) {
    case CUP_ACTIVATION_RELU:
        return cup_relu(c, x);
    case CUP_ACTIVATION_GELU:
        return cup_gelu(c, x);
    case CUP_ACTIVATION_SILU:
        return cup_silu(c, x);
    case CUP_ACTIVATION_SWIGLU:
        return gated(c, x);
    case CUP_ACTIVATION_TANH:
        return cup_tanh(c, x);
    case CUP_ACTIVATION_SIGMOID:
        return cup_sigmoid(c, x);
    case CUP_ACTIVATION_NONE:
        break;
    }
    return x;
}

cup_tensor *cup_linear_layer_call(const cup_linear_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    const cup__portion *part = cup__parameters_part(layer->layer.parameters, layer->weight);
    if (part && part->axis == 1)
        return sum_parts(layer, c, part, x);
    if (layer->lora || cup__parameters_is_fp8(layer->layer.parameters, layer->weight)) {
        cup_tensor *y = multiply(layer, c, x, layer->bias);
        if (layer->lora && y)
            y = cup_lora_layer_add(layer->lora, x, y);
        return cup__layer_activate(c, layer->activation, y);
    }
    switch (layer->activation) {
    case CUP_ACTIVATION_RELU:
        return cup_linear_relu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_GELU:
        return cup_linear_gelu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_SILU:
        return cup_linear_silu(c, x, layer->weight, layer->bias);
    case CUP_ACTIVATION_SWIGLU:
        return cup_linear_swiglu(c, x, layer->weight, layer->bias);
    default:
        return cup__layer_activate(c, layer->activation,
                                   cup_linear(c, x, layer->weight, layer->bias));
    }
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
                        .deviation = o.deviation, .gain = o.gain, .decay = true,
                        .part = o.part));
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_embedding_layer_call(const cup_embedding_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    const cup__portion *part = cup__parameters_part(layer->layer.parameters, layer->weight);
    return part && part->axis == 0 ? cup_comm_embedding(part->comm, layer->weight, x)
                                   : cup_embedding(c, layer->weight, x);
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
    return c ? cup__layer_drop(&layer->layer, c, x, layer->p) : NULL;
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
