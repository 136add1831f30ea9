/* Convolutions along one side and three, and transposed ones, as layers. */
#ifdef CUP_LAYERS_H
/* cup_conv2d_layer along one side, of x [N,in,L], and along three, of x [N,in,D,H,W]: all as there,
 * see cup_conv1d and cup_conv3d. A kernel of the latter is one size, or depth, height and width;
 * stride, dilation and padding are one number, one for each side, or padding two for each. */
typedef struct cup_conv1d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[1], padding[2], dilation[1];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv1d_layer;

CUP_API cup_status cup_conv1d_layer_new(cup_conv1d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out, int64_t kernel,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv1d_layer_call(const cup_conv1d_layer *layer, cup_tensor *x);

typedef struct cup_conv3d_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[3], padding[6], dilation[3];
    bool same;
    int groups;
    cup_padding_mode padding_mode;
} cup_conv3d_layer;

CUP_API cup_status cup_conv3d_layer_new(cup_conv3d_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const int64_t *kernel, int kernel_count,
                                        const cup_conv2d_layer_options *options);
CUP_API cup_tensor *cup_conv3d_layer_call(const cup_conv3d_layer *layer, cup_tensor *x);

/* x [N,in,..] with as many sides as the kernel has sizes, one to three, to activation(the
 * transposed convolution of it) [N,out,..], see cup_conv_transpose2d. "weight" [in,out/groups,..]
 * has weight decay; "bias" [out] begins with zeros. */
typedef struct cup_conv_transpose_layer {
    cup_layer layer;
    cup_activation activation;
    cup_tensor *weight, *bias;
    int64_t stride[3], padding[6], output_padding[3], dilation[3];
    int sides, groups;
    bool same;
} cup_conv_transpose_layer;

typedef struct cup_conv_transpose_layer_options {
    size_t size;
    cup_activation activation; /* all but SWIGLU */
    cup_ints stride, padding, output_padding, dilation; /* none: 1, 0, 0 and 1 */
    int groups;                                         /* 0: 1 */
    bool no_bias;
    cup_initializer initializer; /* of the weight; DEFAULT: NORMAL, with the deviation of
                                    KAIMING_NORMAL for as many products as a sum has, without
                                    overlaps that a stride leaves out */
    double deviation, gain;
    bool same; /* each side becomes `stride` times as long, without padding and output_padding */
} cup_conv_transpose_layer_options;

CUP_API cup_status cup_conv_transpose_layer_new(cup_conv_transpose_layer *layer,
                                                cup_parameters *list, const char *name, int64_t in,
                                                int64_t out, const int64_t *kernel,
                                                int kernel_count,
                                                const cup_conv_transpose_layer_options *options);
CUP_API cup_tensor *cup_conv_transpose_layer_call(const cup_conv_transpose_layer *layer,
                                                  cup_tensor *x);
#endif
#include <math.h>

#include "base/options.h"
#include "cupola/functions.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/context.h"

CUP__LAYER_CALL(conv1d)
CUP__LAYER_CALL(conv3d)
CUP__LAYER_CALL(conv_transpose)

static cup_status refuse(cup_parameters *list, const char *words)
{
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "layer under \"%s\": %s", cup__parameters_prefix(list), words);
}

/* One number for all sides or one for each and, where a side has two ends, two for each. */
static cup_status take(cup_parameters *list, int64_t *to, int sides, int ends,
                       const cup_ints *from, int64_t usual)
{
    int most = sides * ends;
    bool fits = from->count == 0 || from->count == 1 || from->count == sides ||
                from->count == most;
    if (!fits || (from->count && !from->values))
        return refuse(list, "stride and dilation have one number or one for each side, padding "
                            "one, or one or two for each side");
    for (int i = 0; i < most; i++)
        to[i] = from->count == 0      ? usual
                : from->count == most ? from->values[i]
                : from->count == 1    ? from->values[0]
                                      : from->values[i / ends];
    return CUP_OK;
}

/* What a convolution is made with, whatever its sides. */
typedef struct making {
    cup_parameters *list;
    int sides, groups;
    int64_t in, out;
    cup_activation activation;
    cup_parameter_options weight;
    int64_t shape[5]; /* of the weight */
} making;

static cup_status check(making *m, const int64_t *kernel, int count, bool transposed)
{
    int64_t groups = m->groups ? m->groups : 1;
    if (!kernel || (count != 1 && count != m->sides))
        return refuse(m->list, "a kernel has one size, or one for each side");
    if (m->activation < CUP_ACTIVATION_NONE || m->activation > CUP_ACTIVATION_SIGMOID ||
        m->activation == CUP_ACTIVATION_SWIGLU)
        return refuse(m->list, "its activation is none that it can have");
    CUP_TRY(cup__layer_size(m->list, "in", m->in));
    CUP_TRY(cup__layer_size(m->list, "out", m->out));
    for (int i = 0; i < m->sides; i++) {
        m->shape[2 + i] = kernel[count == 1 ? 0 : i];
        CUP_TRY(cup__layer_size(m->list, "kernel", m->shape[2 + i]));
    }
    if (groups < 1 || m->in % groups || m->out % groups)
        return refuse(m->list, "its channels, in and out, do not divide into the groups");
    m->shape[0] = transposed ? m->in : m->out;
    m->shape[1] = (transposed ? m->out : m->in) / groups;
    m->groups = (int)groups;
    return CUP_OK;
}

static void make_tensors(making *m, bool no_bias, cup_tensor **weight, cup_tensor **bias)
{
    m->weight.size = sizeof m->weight;
    m->weight.decay = m->weight.hidden = true;
    *weight = cup_parameter_new(m->list, "weight", 2 + m->sides, m->shape, &m->weight);
    if (!no_bias)
        *bias = cup__layer_vector(m->list, "bias", m->out, CUP_INITIALIZER_ZEROS);
}

/* As a conv2d begins. */
static void choose_values(making *m, cup_initializer initializer, double deviation, double gain)
{
    bool rectifies = m->activation >= CUP_ACTIVATION_RELU && m->activation <= CUP_ACTIVATION_SILU;
    m->weight.initializer = initializer;
    m->weight.deviation = deviation;
    m->weight.gain = gain;
    if (initializer != CUP_INITIALIZER_DEFAULT)
        return;
    m->weight.initializer = CUP_INITIALIZER_KAIMING_NORMAL;
    m->weight.gain = gain > 0 || rectifies ? gain : 1;
}

static making begin(cup_parameters *list, int sides, int64_t in, int64_t out,
                    const cup_conv2d_layer_options *o)
{
    making m = {.list = list, .sides = sides, .groups = o->groups, .in = in, .out = out,
                .activation = o->activation};
    choose_values(&m, o->initializer, o->deviation, o->gain);
    return m;
}

#define TAKE(m, layer, o)                                                                          \
    (take((m)->list, (layer)->stride, (m)->sides, 1, &(o)->stride, 1) == CUP_OK &&                 \
     take((m)->list, (layer)->dilation, (m)->sides, 1, &(o)->dilation, 1) == CUP_OK &&             \
     take((m)->list, (layer)->padding, (m)->sides, 2, &(o)->padding, 0) == CUP_OK)

/* Everything of a layer but its begin; structs of one side and of three have fields of one name. */
#define MAKE(words, sides, kernel, kernel_count)                                                   \
    do {                                                                                           \
        cup_conv2d_layer_options o;                                                                \
        cup_context *c = cup__parameters_context(list);                                            \
        if (cup__options_take(&c->error, words, &o, sizeof o, options) != CUP_OK)                  \
            break;                                                                                 \
        making m = begin(list, sides, in, out, &o);                                                \
        if (check(&m, kernel, kernel_count, false) != CUP_OK || !TAKE(&m, layer, &o))              \
            break;                                                                                 \
        layer->activation = o.activation;                                                          \
        layer->same = o.same;                                                                      \
        layer->groups = m.groups;                                                                  \
        layer->padding_mode = o.padding_mode;                                                      \
        make_tensors(&m, o.no_bias, &layer->weight, &layer->bias);                                 \
    } while (0)

cup_status cup_conv1d_layer_new(cup_conv1d_layer *layer, cup_parameters *list, const char *name,
                                int64_t in, int64_t out, int64_t kernel,
                                const cup_conv2d_layer_options *options)
{
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_conv1d));
    MAKE("conv1d", 1, &kernel, 1);
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_conv1d_layer_call(const cup_conv1d_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    return cup_conv1d(c, x, layer->weight, layer->bias,
                      CUP_OPTIONS(cup_conv2d_options, .stride = {layer->stride, 1},
                                  .padding = {layer->padding, layer->same ? 0 : 2},
                                  .same = layer->same, .dilation = {layer->dilation, 1},
                                  .groups = layer->groups, .padding_mode = layer->padding_mode,
                                  .activation = layer->activation));
}

cup_status cup_conv3d_layer_new(cup_conv3d_layer *layer, cup_parameters *list, const char *name,
                                int64_t in, int64_t out, const int64_t *kernel, int kernel_count,
                                const cup_conv2d_layer_options *options)
{
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_conv3d));
    MAKE("conv3d", 3, kernel, kernel_count);
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_conv3d_layer_call(const cup_conv3d_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    return cup__layer_activate(
        c, layer->activation,
        cup_conv3d(c, x, layer->weight, layer->bias,
                   CUP_OPTIONS(cup_conv3d_options, .stride = {layer->stride, 3},
                               .padding = {layer->padding, layer->same ? 0 : 6},
                               .same = layer->same, .dilation = {layer->dilation, 3},
                               .groups = layer->groups, .padding_mode = layer->padding_mode)));
}

/* A stride leaves out all but so many of the products that a sum could have. */
static void choose_deviation(making *m, const int64_t *stride)
{
    double products = (double)(m->in / m->groups), gain = m->weight.gain;
    for (int i = 0; i < m->sides; i++)
        products *= fmax((double)m->shape[2 + i] / (double)(stride[i] > 0 ? stride[i] : 1), 1);
    m->weight.initializer = CUP_INITIALIZER_NORMAL;
    m->weight.deviation = (gain > 0 ? gain : sqrt(2)) / sqrt(products);
    m->weight.gain = 0;
}

cup_status cup_conv_transpose_layer_new(cup_conv_transpose_layer *layer, cup_parameters *list,
                                        const char *name, int64_t in, int64_t out,
                                        const int64_t *kernel, int kernel_count,
                                        const cup_conv_transpose_layer_options *options)
{
    cup_conv_transpose_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_conv_transpose));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "conv_transpose", &o, sizeof o, options) != CUP_OK)
        return cup__layer_end(layer, sizeof *layer);
    making m = {.list = list, .sides = kernel_count, .groups = o.groups, .in = in, .out = out,
                .activation = o.activation};
    choose_values(&m, o.initializer, o.deviation, o.gain);
    if (o.same && (o.padding.count || o.output_padding.count))
        refuse(list, "same says what padding and output_padding are; leave them out, or same");
    else if (kernel_count < 1 || kernel_count > 3)
        refuse(list, "a kernel has a size for each side, of which there are one to three");
    else if (check(&m, kernel, kernel_count, true) == CUP_OK && TAKE(&m, layer, &o) &&
             take(list, layer->output_padding, m.sides, 1, &o.output_padding, 0) == CUP_OK) {
        if (o.initializer == CUP_INITIALIZER_DEFAULT)
            choose_deviation(&m, layer->stride);
        layer->activation = o.activation;
        layer->sides = m.sides;
        layer->groups = m.groups;
        layer->same = o.same;
        make_tensors(&m, o.no_bias, &layer->weight, &layer->bias);
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_conv_transpose_layer_call(const cup_conv_transpose_layer *layer, cup_tensor *x)
{
    static cup_tensor *(*const calls[])(cup_context *, cup_tensor *, cup_tensor *, cup_tensor *,
                                        const cup_conv_transpose_options *) = {
        cup_conv_transpose1d, cup_conv_transpose2d, cup_conv_transpose3d};
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    int n = layer->sides, given = !layer->same;
    return cup__layer_activate(
        c, layer->activation,
        calls[n - 1](c, x, layer->weight, layer->bias,
                     CUP_OPTIONS(cup_conv_transpose_options, .stride = {layer->stride, n},
                                 .padding = {layer->padding, given * 2 * n},
                                 .output_padding = {layer->output_padding, given * n},
                                 .dilation = {layer->dilation, n}, .groups = layer->groups,
                                 .same = layer->same)));
}
