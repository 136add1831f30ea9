/* What all layers do when they are made and called.
 *
 * A layer is one file, layers_NAME.c: what cupola/layers.h says of it stands there between #ifdef
 * CUP_LAYERS_H and #endif, from where tools/gen_layers takes it; then comes its code. */
#ifndef CUP_NN_LAYERS_H
#define CUP_NN_LAYERS_H

#include "cupola/kv_cache.h"
#include "cupola/layers.h"
#include "cupola/ops.h"
#include "nn/parameters.h"

/* Clears the layer's struct and sets what it begins with. Fails without a list and without a
 * struct; a list that could not be made is none. */
cup_status cup__layer_begin(void *layer, size_t bytes, cup_parameters *list,
                            cup_tensor *(*call)(const cup_layer *, cup_tensor *));

/* Clears the struct again where something failed, so that the layer cannot be called in part. */
cup_status cup__layer_end(void *layer, size_t bytes);

/* Begins a layer of tensors that are there; fails without the first of them. */
cup_status cup__layer_begin_of(void *layer, size_t bytes, cup_parameters *list,
                               cup_tensor *weight,
                               cup_tensor *(*call)(const cup_layer *, cup_tensor *));

/* A parameter of one dimension. */
cup_tensor *cup__layer_vector(cup_parameters *list, const char *name, int64_t size,
                              cup_initializer initializer);

/* Drops out in training. */
cup_tensor *cup__layer_drop(const cup_layer *layer, cup_context *c, cup_tensor *x, double p);
cup_status cup__layer_probability(cup_parameters *list, double p);

/* A batchnorm in training whose batch several processes share, with channels along `axis`. */
cup_tensor *cup__batchnorm_together(const cup_batchnorm_layer *layer, cup_context *c,
                                    cup_tensor *x, int axis);

/* The same as cup_linear_layer_new, of outputs in sections, see cup_parameter_options. */
cup_status cup__linear_layer_make(cup_linear_layer *layer, cup_parameters *list, const char *name,
                                  int64_t in, int64_t out,
                                  const cup_linear_layer_options *options,
                                  const int64_t *sections);

/* Everything of attention but its tensors, shared out to so many processes; and those, the last of
 * which begin smaller by the factor. */
cup_status cup__attention_layer_set(cup_attention_layer *layer, cup_parameters *list,
                                    int64_t width, int64_t heads, cup_attention_layer_options o,
                                    int processes);
cup_status cup__attention_layer_make(cup_attention_layer *layer, cup_parameters *list,
                                     int64_t width, int64_t heads, cup_attention_layer_options o,
                                     double shrink);

/* Gives one with alibi the slopes of its heads, when its other tensors are there. */
cup_status cup__attention_layer_slope(cup_attention_layer *layer);

/* Whether so many processes can share out heads of keys and values, which may be fewer: several
 * have the same one then, and as many of its features each. What layers of the list need for it.
 * And from [B,T,..] that this process made, queries, keys and values of its heads as a whole. */
bool cup__keys_can_share(int processes, int64_t kv_heads, int64_t head_size);
cup_status cup__keys_share(cup_parameters *list, int processes, int64_t kv_heads);
cup_tensor *cup__keys_gather(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv);

/* Queries, keys and values of x, normed where the layer has norms of them, and not yet turned. */
cup_tensor *cup__attention_layer_qkv(const cup_attention_layer *layer, cup_context *c,
                                     cup_tensor *x);
/* The window that hides something of so many keys; 0: none does. */
int64_t cup__attention_layer_window(const cup_attention_layer *layer, int64_t length);

/* Whether heads of that size can be turned so; and how those of a text of `length` positions are,
 * but for the offset. */
bool cup__rope_scaling_is_good(const cup_rope_scaling *s, double base, int64_t head_size);
cup_rope_options cup__attention_layer_rope(const cup_attention_layer *layer, int64_t length);

/* What becomes of the scores of its heads: no cap, and NULL, where there is nothing. Slopes and
 * sinks are in f32, or in f64 as the rest. */
typedef struct cup__layer_scores {
    double soft_cap;
    cup_tensor *slopes, *sinks;
} cup__layer_scores;
cup__layer_scores cup__attention_layer_scores(const cup_attention_layer *layer, cup_context *c);

/* Makes the tensors of an MLP, whose last weights begin smaller by the factor. */
cup_status cup__mlp_layer_make(cup_mlp_layer *layer, cup_parameters *list, int64_t width,
                               int64_t hidden, const cup_mlp_layer_options *o, double shrink);

/* Keys and values of what was read before, [B,kv_heads,length,head size], of which the first `used`
 * positions are there. */
typedef struct cup__reading {
    cup_tensor *keys, *values;
    int64_t used;
    int64_t gone;         /* positions before those, which a window hides */
    cup_tensor *position; /* of one new row a text, on the device; NULL: `used` */
    cup_tensor *place;    /* where that row's key is put, if not at the position; or NULL */
    cup_kv_cache *kept;   /* has the keys and values in place of those, or NULL; with a position
                             behind what its own lengths say */
    int64_t index;        /* of the layer in it */
} cup__reading;

/* cup_transformer_layer_pass_cost, which with `past` comes behind what was read before. */
cup_tensor *cup__transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                        cup_tensor **delta, cup_tensor **cost,
                                        const cup__reading *past);
/* Attention of new rows to all that was read, their own rows included. */
cup_tensor *cup__reading_attention(const cup_attention_layer *layer, cup_tensor *x,
                                   const cup__reading *past);

/* Has calls of x and of delta, which may be NULL, wait for sums of the processes that share out the
 * list, by halves of the batch, where that is worth it: see dispatch/halves.h. */
cup_status cup__layers_wait(const cup_parameters *list, cup_tensor *x, cup_tensor *delta);

/* What stands behind a linear layer; x as it is for NONE. */
cup_tensor *cup__layer_activate(cup_context *c, cup_activation activation, cup_tensor *x);

/* Makes the tensors of a layer of experts, of which the last begin smaller by the factor. */
typedef struct cup__experts_sizes {
    int64_t width, hidden, experts, each;
} cup__experts_sizes;
cup_status cup__experts_layer_make(cup_experts_layer *layer, cup_parameters *list,
                                   const cup__experts_sizes *sizes,
                                   const cup_experts_layer_options *o, double shrink);

/* Fails unless the size is at least 1 and can be doubled. */
cup_status cup__layer_size(cup_parameters *list, const char *what, int64_t size);

/* The context to compute in; NULL where there is no input, or a layer that was never made, which
 * the input's context says. */
cup_context *cup__layer_context(const cup_layer *layer, cup_tensor *x);

/* Defines call_NAME, by which a sequence calls cup_NAME_layer_call. */
#define CUP__LAYER_CALL(name)                                                                      \
    static cup_tensor *call_##name(const cup_layer *layer, cup_tensor *x)                          \
    {                                                                                              \
        return cup_##name##_layer_call((const cup_##name##_layer *)(const void *)layer, x);        \
    }

#endif
