/* Sums of embeddings. */
#ifdef CUP_LAYERS_H
/* Ids [B,K], i32 or i64, to the sums, or means, of the K rows of "weight" [count,width] that each
 * names, [B,width]; or by offsets, see cup_embedding_bag, bags of any size. */
typedef struct cup_embedding_bag_layer {
    cup_layer layer;
    cup_tensor *weight;
    bool mean;
} cup_embedding_bag_layer;

typedef struct cup_embedding_bag_layer_options {
    size_t size;
    bool mean;
    cup_initializer initializer; /* DEFAULT: NORMAL */
    double deviation, gain;
} cup_embedding_bag_layer_options;

CUP_API cup_status cup_embedding_bag_layer_new(cup_embedding_bag_layer *layer,
                                               cup_parameters *list, const char *name,
                                               int64_t count, int64_t width,
                                               const cup_embedding_bag_layer_options *options);
CUP_API cup_tensor *cup_embedding_bag_layer_call(const cup_embedding_bag_layer *layer,
                                                 cup_tensor *ids);
CUP_API cup_tensor *cup_embedding_bag_layer_pass(const cup_embedding_bag_layer *layer,
                                                 cup_tensor *ids, cup_tensor *offsets);
#endif
#include "base/options.h"
#include "cupola/functions.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

CUP__LAYER_CALL(embedding_bag)

cup_status cup_embedding_bag_layer_new(cup_embedding_bag_layer *layer, cup_parameters *list,
                                       const char *name, int64_t count, int64_t width,
                                       const cup_embedding_bag_layer_options *options)
{
    cup_embedding_bag_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_embedding_bag));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "embedding_bag", &o, sizeof o, options) == CUP_OK &&
        cup__layer_size(list, "count", count) == CUP_OK &&
        cup__layer_size(list, "width", width) == CUP_OK) {
        layer->mean = o.mean;
        layer->weight = cup_parameter_new(
            list, "weight", 2, (int64_t[]){count, width},
            CUP_OPTIONS(cup_parameter_options, .initializer = o.initializer,
                        .deviation = o.deviation, .gain = o.gain, .decay = true));
    }
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup_embedding_bag_layer_pass(const cup_embedding_bag_layer *layer, cup_tensor *ids,
                                         cup_tensor *offsets)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, ids);
    return c ? cup_embedding_bag(c, layer->weight, ids, offsets, layer->mean) : NULL;
}

cup_tensor *cup_embedding_bag_layer_call(const cup_embedding_bag_layer *layer, cup_tensor *ids)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, ids);
    if (!c)
        return NULL;
    if (ids->ndim != 2) {
        cup__fail(&c->error, CUP_SHAPE,
                  "layer under \"%s\": ids must be [B,K]; give bags of other sizes with offsets",
                  cup__parameters_prefix(layer->layer.parameters));
        return NULL;
    }
    int64_t bags = ids->shape[0], each = ids->shape[1], all = bags * each;
    cup_tensor *ends = cup_scale(c, cup_arange(c, CUP_F64, 1, (double)bags + 1, NULL),
                                 (double)each);
    return cup_embedding_bag_layer_pass(layer, cup_reshape(c, ids, 1, &all),
                                        cup_cast(c, ends, CUP_I64));
}
