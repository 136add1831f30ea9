/* Recurrent layers. */
#ifdef CUP_LAYERS_H
#define CUP_RECURRENT_MOST 8 /* layers on each other */

/* Long short-term memory, and gated recurrent units, over the steps of x [T,N,in] to all h
 * [T,N,width], see cup_lstm and cup_gru: layers on each other and, where `both`, in both
 * directions, whose h lie side by side, [T,N,2 width]. Names and shapes are those of PyTorch:
 * "weight_ih_l0" [gates width,in], "weight_hh_l0", "bias_ih_l0" and "bias_hh_l0", with "_reverse"
 * behind those of the way back; all begin uniform between -+ 1 / sqrt(width). Weights have weight
 * decay. */
typedef struct cup_recurrent_layer {
    cup_layer layer;
    int layers, directions, gates;
    int64_t width;
    bool no_bias;
    double dropout;
    cup_tensor *weights[CUP_RECURRENT_MOST][2][4]; /* of each layer and direction */
} cup_recurrent_layer;
typedef cup_recurrent_layer cup_lstm_layer, cup_gru_layer;

typedef struct cup_recurrent_layer_options {
    size_t size;
    int layers;     /* 0: 1 */
    bool both;      /* directions */
    bool no_bias;
    double dropout; /* of what goes from layer to layer, in training */
} cup_recurrent_layer_options;

CUP_API cup_status cup_lstm_layer_new(cup_lstm_layer *layer, cup_parameters *list,
                                      const char *name, int64_t in, int64_t width,
                                      const cup_recurrent_layer_options *options);
CUP_API cup_tensor *cup_lstm_layer_call(const cup_lstm_layer *layer, cup_tensor *x);
CUP_API cup_status cup_gru_layer_new(cup_gru_layer *layer, cup_parameters *list, const char *name,
                                     int64_t in, int64_t width,
                                     const cup_recurrent_layer_options *options);
CUP_API cup_tensor *cup_gru_layer_call(const cup_gru_layer *layer, cup_tensor *x);

/* The same from h and cells [layers directions,N,width] on, those of a layer's directions one
 * behind the other; NULL: zeros. `out` takes all h, the last h of each, and the last cells, of
 * shapes as these; of a gru, which has no cells, NULL. */
CUP_API cup_status cup_lstm_layer_pass(const cup_lstm_layer *layer, cup_tensor *x, cup_tensor *h,
                                       cup_tensor *cells, cup_tensor *out[3]);
CUP_API cup_status cup_gru_layer_pass(const cup_gru_layer *layer, cup_tensor *x, cup_tensor *h,
                                      cup_tensor *out[2]);
#endif
#include <math.h>
#include <stdio.h>

#include "base/options.h"
#include "cupola/functions.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

CUP__LAYER_CALL(lstm)
CUP__LAYER_CALL(gru)

static void make_tensors(cup_recurrent_layer *layer, cup_parameters *list, int64_t in, int i)
{
    static const char *const parts[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    int64_t width = layer->width, all = layer->gates * width;
    for (int k = 0; k < layer->directions * 4; k++) {
        char name[40];
        int part = k % 4;
        const int64_t shape[] = {all, part == 0 ? in : width};
        if (part > 1 && layer->no_bias)
            continue;
        snprintf(name, sizeof name, "%s_l%d%s", parts[part], i, k < 4 ? "" : "_reverse");
        layer->weights[i][k / 4][part] = cup_parameter_new(
            list, name, part < 2 ? 2 : 1, shape,
            CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_UNIFORM,
                        .deviation = 1 / sqrt(3 * (double)width), .decay = part < 2,
                        .hidden = part < 2));
    }
}

static cup_status make(cup_recurrent_layer *layer, cup_parameters *list, int64_t in, int64_t width,
                       const cup_recurrent_layer_options *options)
{
    cup_recurrent_layer_options o;
    cup_context *c = cup__parameters_context(list);
    CUP_TRY(cup__options_take(&c->error, layer->gates == 4 ? "lstm" : "gru", &o, sizeof o,
                              options));
    CUP_TRY(cup__layer_size(list, "in", in));
    CUP_TRY(cup__layer_size(list, "width", width));
    CUP_TRY(cup__layer_probability(list, o.dropout));
    if (o.layers < 0 || o.layers > CUP_RECURRENT_MOST)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "layer under \"%s\": there are 1 to %d layers on each other, not %d",
                         cup__parameters_prefix(list), CUP_RECURRENT_MOST, o.layers);
    layer->layers = o.layers ? o.layers : 1;
    layer->directions = 1 + o.both;
    layer->width = width;
    layer->no_bias = o.no_bias;
    layer->dropout = o.dropout;
    for (int i = 0; i < layer->layers; i++)
        make_tensors(layer, list, i ? layer->directions * width : in, i);
    return c->error.status;
}

typedef struct kind {
    cup_tensor *(*call)(const cup_layer *, cup_tensor *);
    int gates;
} kind;

static cup_status make_kind(cup_recurrent_layer *layer, cup_parameters *list, const char *name,
                            int64_t in, int64_t width, const cup_recurrent_layer_options *options,
                            kind made)
{
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, made.call));
    layer->gates = made.gates;
    make(layer, list, in, width, options);
    return cup__layer_end(layer, sizeof *layer);
}

cup_status cup_lstm_layer_new(cup_lstm_layer *layer, cup_parameters *list, const char *name,
                              int64_t in, int64_t width,
                              const cup_recurrent_layer_options *options)
{
    return make_kind(layer, list, name, in, width, options, (kind){call_lstm, 4});
}

cup_status cup_gru_layer_new(cup_gru_layer *layer, cup_parameters *list, const char *name,
                             int64_t in, int64_t width,
                             const cup_recurrent_layer_options *options)
{
    return make_kind(layer, list, name, in, width, options, (kind){call_gru, 3});
}

/* What one direction of one layer remembers at first, [N,width]. */
static cup_tensor *first_of(const cup_recurrent_layer *layer, cup_context *c, cup_tensor *x,
                            cup_tensor *states, int k)
{
    const int64_t shape[] = {x->shape[1], layer->width};
    if (!states)
        return cup_zeros(c, x->dtype, 2, shape);
    return cup_reshape(c, cup_slice(c, states, (int64_t[]){k, 0, 0}, 3,
                                    (int64_t[]){1, shape[0], shape[1]}, 3), 2, shape);
}

static cup_tensor *turned(cup_context *c, cup_tensor *x, bool back)
{
    return back ? cup_flip(c, x, (int64_t[]){0}, 1) : x;
}

/* One direction of one layer: all h, the last, and the last cell. */
static cup_status run(const cup_recurrent_layer *layer, cup_context *c, cup_tensor *x, int k,
                      cup_tensor *const states[2], cup_tensor *made[3])
{
    bool back = k % layer->directions;
    cup_tensor *const *weights = layer->weights[k / layer->directions][back];
    int count = layer->no_bias ? 2 : 4;
    cup_tensor *h = first_of(layer, c, x, states[0], k);
    x = turned(c, x, back);
    if (layer->gates == 4)
        cup_lstm(c, x, h, first_of(layer, c, x, states[1], k), weights, count, made);
    else
        cup_gru(c, x, h, weights, count, made);
    made[0] = turned(c, made[0], back);
    return c->error.status;
}

static bool have_states(const cup_recurrent_layer *layer, cup_context *c, const cup_tensor *x,
                        cup_tensor *const states[2])
{
    int64_t all = layer->layers * layer->directions;
    bool good = x->ndim == 3;
    for (int i = 0; i < 2 && good; i++)
        good = !states[i] || (states[i]->ndim == 3 && states[i]->shape[0] == all &&
                              states[i]->shape[1] == x->shape[1] &&
                              states[i]->shape[2] == layer->width);
    if (!good)
        cup__fail(&c->error, CUP_SHAPE,
                  "layer under \"%s\": x must be [T,N,in], and h and cells [%lld,N,%lld]",
                  cup__parameters_prefix(layer->layer.parameters), (long long)all,
                  (long long)layer->width);
    return good;
}

static cup_status pass(const cup_recurrent_layer *layer, cup_tensor *x,
                       cup_tensor *const states[2], cup_tensor **out)
{
    cup_tensor *last[2][CUP_RECURRENT_MOST * 2];
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    int outs = layer && layer->gates == 4 ? 3 : 2, n = 0;
    for (int i = 0; out && i < outs; i++)
        out[i] = NULL;
    if (!c)
        return CUP_ARGUMENT;
    if (!have_states(layer, c, x, states))
        return c->error.status;
    for (int i = 0; i < layer->layers; i++) {
        cup_tensor *all[2];
        if (i)
            x = cup__layer_drop((const cup_layer *)layer, c, x, layer->dropout);
        for (int k = 0; k < layer->directions; k++, n++) {
            cup_tensor *made[3] = {NULL};
            CUP_TRY(run(layer, c, x, n, states, made));
            all[k] = made[0];
            last[0][n] = made[1];
            last[1][n] = made[2];
        }
        x = layer->directions > 1 ? cup_concat(c, all, 2, 2) : all[0];
    }
    out[0] = x;
    for (int i = 1; i < outs && x; i++)
        out[i] = cup_stack(c, last[i - 1], n, 0);
    return c->error.status;
}

cup_status cup_lstm_layer_pass(const cup_lstm_layer *layer, cup_tensor *x, cup_tensor *h,
                               cup_tensor *cells, cup_tensor *out[3])
{
    return pass(layer, x, (cup_tensor *[]){h, cells}, out);
}

cup_status cup_gru_layer_pass(const cup_gru_layer *layer, cup_tensor *x, cup_tensor *h,
                              cup_tensor *out[2])
{
    return pass(layer, x, (cup_tensor *[]){h, NULL}, out);
}

cup_tensor *cup_lstm_layer_call(const cup_lstm_layer *layer, cup_tensor *x)
{
    cup_tensor *out[3];
    return cup_lstm_layer_pass(layer, x, NULL, NULL, out) == CUP_OK ? out[0] : NULL;
}

cup_tensor *cup_gru_layer_call(const cup_gru_layer *layer, cup_tensor *x)
{
    cup_tensor *out[2];
    return cup_gru_layer_pass(layer, x, NULL, out) == CUP_OK ? out[0] : NULL;
}
