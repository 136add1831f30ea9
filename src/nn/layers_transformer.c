/* The block of a transformer. */
#ifdef CUP_LAYERS_H
/* A block of a transformer, each half behind a norm and added to what comes in:
 * h = x + attention(norm1(x)), y = h + mlp(norm2(h)). */
typedef struct cup_transformer_layer {
    cup_layer layer;
    cup_layernorm_layer norm1, norm2;         /* or, with rmsnorm, */
    cup_rmsnorm_layer rmsnorm1, rmsnorm2;     /* these; the names are "norm1" and "norm2" */
    cup_attention_layer attention;            /* "attention" */
    cup_mlp_layer mlp;                        /* "mlp" */
    bool rms;
    double dropout;
    bool mixed;                               /* in place of the MLP there are */
    cup_experts_layer experts;                /* these, "mlp" too */
} cup_transformer_layer;

typedef struct cup_transformer_layer_options {
    size_t size;
    int64_t kv_heads;
    bool causal, rope;
    double rope_base;
    bool rmsnorm;              /* else layernorm */
    double epsilon;            /* of the norms; 0: 1e-5 */
    cup_activation activation; /* of the MLP; NONE: GELU */
    int64_t hidden;            /* width inside the MLP; 0: 4 width, with SWIGLU 8/3 width */
    double dropout;            /* of what each half adds and of probabilities, in training */
    bool no_bias;
    double deviation; /* of all matrices, which are normal; 0: 0.02 */
    int64_t layers;   /* of the model: what leads back to the residual stream begins smaller, by
                         sqrt(2 layers); 0: it does not */
    int64_t head_size; /* these as in cup_attention_layer_options */
    bool qk_norm;
    cup_rope_scaling rope_scaling;
    /* Of experts in place of the MLP, see cup_experts_layer: how many, 0 being none, and how many
     * of them a row goes through; the rest as in cup_experts_layer_options. They have no biases. */
    int64_t experts, experts_each;
    double capacity, balance, router_z;
    int64_t window; /* these as in cup_attention_layer_options */
    double soft_cap;
    bool alibi, sinks;
} cup_transformer_layer_options;

CUP_API cup_status cup_transformer_layer_new(cup_transformer_layer *layer, cup_parameters *list,
                                             const char *name, int64_t width, int64_t heads,
                                             const cup_transformer_layer_options *options);
CUP_API cup_tensor *cup_transformer_layer_call(const cup_transformer_layer *layer, cup_tensor *x);

/* The tensors of such a block, [outputs, inputs] where they are matrices; what it has not is
 * NULL. */
typedef struct cup_transformer_tensors {
    size_t size;                    /* see CUP_OPTIONS */
    cup_tensor *norm1, *norm1_bias; /* [width] */
    cup_tensor *qkv, *qkv_bias;     /* queries of all heads, then keys, then values */
    cup_tensor *out, *out_bias;     /* [width, heads head_size] */
    cup_tensor *norm2, *norm2_bias;
    cup_tensor *up, *up_bias;     /* [hidden, width]; SWIGLU: the gates, then the values */
    cup_tensor *down, *down_bias; /* [width, hidden] */
    cup_tensor *q_norm, *k_norm;  /* [head_size], with qk_norm */
    cup_tensor *router; /* of experts: up and down are then [experts,hidden,width] and
                           [experts,width,hidden], without biases */
    cup_tensor *sinks;  /* [heads] */
} cup_transformer_tensors;

/* A block of tensors that are in the list already, under names of the caller's choice. Of the
 * options those that say how tensors are made do not matter. */
CUP_API cup_status cup_transformer_layer_of(cup_transformer_layer *layer, cup_parameters *list,
                                            const cup_transformer_tensors *tensors, int64_t heads,
                                            const cup_transformer_layer_options *options);

/* The block within a stack of them, where the last sum of one and the first norm of the next are
 * one op: its input is x and *delta, the sum of which has not been made yet (NULL: x alone), and so
 * is what it returns and *delta then. Dropout of *delta is left to whoever adds it, too. */
CUP_API cup_tensor *cup_transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                               cup_tensor **delta);

/* The same; *cost becomes what experts add to the loss, see cup_experts_layer_pass, or NULL. */
CUP_API cup_tensor *cup_transformer_layer_pass_cost(const cup_transformer_layer *layer,
                                                    cup_tensor *x, cup_tensor **delta,
                                                    cup_tensor **cost);

/* The same of x [B,T,width] that follows `used` positions which were read before, causal: their
 * keys and values, in front in `keys` and `values` [B,kv_heads,length,head size] of the same dtype,
 * are attended to, and those of x are put behind them. Nothing is recorded. CUP_STATE where there
 * is no room for T more. */
CUP_API cup_tensor *cup_transformer_layer_read(const cup_transformer_layer *layer, cup_tensor *x,
                                               cup_tensor **delta, cup_tensor *keys,
                                               cup_tensor *values, int64_t used);

/* The same where `gone` positions were read before those, whose keys and values are kept no longer:
 * the layer's window hides them from x. CUP_ARGUMENT where it does not. */
CUP_API cup_tensor *cup_transformer_layer_read_window(const cup_transformer_layer *layer,
                                                      cup_tensor *x, cup_tensor **delta,
                                                      cup_tensor *keys, cup_tensor *values,
                                                      int64_t used, int64_t gone);

/* The same of one row a text, x [B,1,width], which stands at `position` on the device: i32 or i64,
 * one number for all texts or one for each, see cup_qkv_attention_read. So the call can be captured
 * in a graph (cupola/graph.h) and replayed at one position after the other. */
CUP_API cup_tensor *cup_transformer_layer_read_at(const cup_transformer_layer *layer, cup_tensor *x,
                                                  cup_tensor **delta, cup_tensor *keys,
                                                  cup_tensor *values, cup_tensor *position);

/* The same where the first positions are kept no longer, as the layer's window hides them: the new
 * key and value are put at `place`, which has as many numbers as the position, of its dtype. */
CUP_API cup_tensor *cup_transformer_layer_read_window_at(const cup_transformer_layer *layer,
                                                         cup_tensor *x, cup_tensor **delta,
                                                         cup_tensor *keys, cup_tensor *values,
                                                         cup_tensor *position, cup_tensor *place);

/* The same as cup_transformer_layer_read with keys and values that a cup_kv_cache has as its layer
 * `index`, see cupola/kv_cache.h, of codes, in pages or neither. All its sequences have `used`
 * positions, and who calls it for all layers advances it then. CUP_UNSUPPORTED with alibi. */
struct cup_kv_cache;
CUP_API cup_tensor *cup_transformer_layer_read_kept(const cup_transformer_layer *layer,
                                                    cup_tensor *x, cup_tensor **delta,
                                                    struct cup_kv_cache *kept, int64_t index,
                                                    int64_t used);

/* The same where each sequence has as many positions as cup_kv_cache_lengths says on the device, so
 * that the call can be captured in a graph. CUP_UNSUPPORTED with dynamic rotary positions. */
CUP_API cup_tensor *cup_transformer_layer_read_kept_at(const cup_transformer_layer *layer,
                                                       cup_tensor *x, cup_tensor **delta,
                                                       struct cup_kv_cache *kept, int64_t index);
#endif
#include <math.h>

#include "base/options.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/halves.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

#define DEVIATION 0.02

CUP__LAYER_CALL(attention)
CUP__LAYER_CALL(experts)
CUP__LAYER_CALL(mlp)
CUP__LAYER_CALL(transformer)

static cup_experts_layer_options experts_options(const cup_transformer_layer_options *o)
{
    return (cup_experts_layer_options){.size = sizeof(cup_experts_layer_options),
                                       .activation = o->activation,
                                       .capacity = o->capacity,
                                       .balance = o->balance,
                                       .router_z = o->router_z};
}

/* The second half: an MLP or experts. */
static cup_status make_second(cup_transformer_layer *layer, cup_parameters *list, int64_t width,
                              const cup_transformer_layer_options *o, double shrink)
{
    double deviation = o->deviation == 0 ? DEVIATION : o->deviation;
    bool gated = o->activation == CUP_ACTIVATION_SWIGLU;
    int64_t hidden = o->hidden ? o->hidden : gated ? (width * 8 / 3 + 63) / 64 * 64 : 4 * width;
    const cup_mlp_layer_options mlp = {.size = sizeof mlp,
                                       .activation = o->activation,
                                       .no_bias = o->no_bias,
                                       .initializer = CUP_INITIALIZER_NORMAL,
                                       .deviation = deviation};
    layer->mixed = o->experts > 0;
    list = cup_parameters_under(list, "mlp");
    if (layer->mixed) {
        cup_experts_layer_options experts = experts_options(o);
        const cup__experts_sizes sizes = {width, hidden, o->experts, o->experts_each};
        experts.deviation = deviation;
        CUP_TRY(
            cup__layer_begin(&layer->experts, sizeof layer->experts, list, call_experts));
        return cup__experts_layer_make(&layer->experts, list, &sizes, &experts, shrink);
    }
    CUP_TRY(cup__layer_begin(&layer->mlp, sizeof layer->mlp, list, call_mlp));
    return cup__mlp_layer_make(&layer->mlp, list, width, hidden, &mlp, shrink);
}

static cup_status make_halves(cup_transformer_layer *layer, cup_parameters *list, int64_t width,
                              int64_t heads, const cup_transformer_layer_options *o)
{
    double deviation = o->deviation == 0 ? DEVIATION : o->deviation;
    double shrink = o->layers > 0 ? 1 / sqrt(2.0 * (double)o->layers) : 1;
    const cup_attention_layer_options attention = {.size = sizeof attention,
                                                   .kv_heads = o->kv_heads,
                                                   .causal = o->causal,
                                                   .rope = o->rope,
                                                   .rope_base = o->rope_base,
                                                   .dropout = o->dropout,
                                                   .no_bias = o->no_bias,
                                                   .initializer = CUP_INITIALIZER_NORMAL,
                                                   .deviation = deviation,
                                                   .head_size = o->head_size,
                                                   .qk_norm = o->qk_norm,
                                                   .epsilon = o->epsilon,
                                                   .rope_scaling = o->rope_scaling,
                                                   .window = o->window,
                                                   .soft_cap = o->soft_cap,
                                                   .alibi = o->alibi,
                                                   .sinks = o->sinks};
    cup_parameters *part = cup_parameters_under(list, "attention");
    CUP_TRY(cup__layer_begin(&layer->attention, sizeof layer->attention, part, call_attention));
    CUP_TRY(cup__attention_layer_make(&layer->attention, part, width, heads, attention, shrink));
    return make_second(layer, list, width, o, shrink);
}

static cup_status make_transformer(cup_transformer_layer *layer, cup_parameters *list,
                                   int64_t width, int64_t heads,
                                   const cup_transformer_layer_options *o)
{
    const cup_norm_layer_options norm = {
        .size = sizeof norm, .epsilon = o->epsilon, .no_bias = o->no_bias};
    CUP_TRY(cup__layer_probability(list, o->dropout));
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

static cup_status take_norms(cup_attention_layer *a, cup_parameters *list,
                             const cup_transformer_tensors *t, bool wanted)
{
    a->q_norm = t->q_norm;
    a->k_norm = t->k_norm;
    if ((a->q_norm != NULL) == wanted && (a->k_norm != NULL) == wanted)
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "transformer under \"%s\": q_norm and k_norm are given with qk_norm, and only "
                     "with it",
                     cup__parameters_prefix(list));
}

static cup_status take_sinks(cup_attention_layer *a, cup_parameters *list,
                             const cup_transformer_tensors *t, bool wanted)
{
    a->sinks = t->sinks;
    if ((a->sinks != NULL) == wanted)
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "transformer under \"%s\": sinks are a tensor and an option; give both or "
                     "neither",
                     cup__parameters_prefix(list));
}

static cup_status take_tensors(cup_transformer_layer *layer, cup_parameters *list,
                               const cup_transformer_tensors *t, int64_t heads,
                               const cup_transformer_layer_options *o)
{
    const cup_attention_layer_options attention = {.kv_heads = o->kv_heads,
                                                   .causal = o->causal,
                                                   .rope = o->rope,
                                                   .rope_base = o->rope_base,
                                                   .dropout = o->dropout,
                                                   .head_size = o->head_size,
                                                   .epsilon = o->epsilon,
                                                   .qk_norm = o->qk_norm,
                                                   .rope_scaling = o->rope_scaling,
                                                   .window = o->window,
                                                   .soft_cap = o->soft_cap,
                                                   .alibi = o->alibi};
    cup_activation up =
        o->activation == CUP_ACTIVATION_NONE ? CUP_ACTIVATION_GELU : o->activation;
    if (o->rmsnorm) {
        CUP_TRY(cup_rmsnorm_layer_of(&layer->rmsnorm1, list, t->norm1, o->epsilon));
        CUP_TRY(cup_rmsnorm_layer_of(&layer->rmsnorm2, list, t->norm2, o->epsilon));
    } else {
        CUP_TRY(cup_layernorm_layer_of(&layer->norm1, list, t->norm1, t->norm1_bias, o->epsilon));
        CUP_TRY(cup_layernorm_layer_of(&layer->norm2, list, t->norm2, t->norm2_bias, o->epsilon));
    }
    cup_attention_layer *a = &layer->attention;
    cup_mlp_layer *m = &layer->mlp;
    CUP_TRY(cup__layer_begin(a, sizeof *a, list, call_attention));
    const cup__portion *part = t->qkv ? cup__parameters_part(list, t->qkv) : NULL;
    CUP_TRY(cup__attention_layer_set(a, list, cup_tensor_size(t->norm1, 0), heads, attention,
                                     part ? cup_comm_count(part->comm) : 1));
    CUP_TRY(take_norms(a, list, t, o->qk_norm));
    CUP_TRY(take_sinks(a, list, t, o->sinks));
    CUP_TRY(cup_linear_layer_of(&a->qkv, list, t->qkv, t->qkv_bias, CUP_ACTIVATION_NONE));
    CUP_TRY(cup_linear_layer_of(&a->out, list, t->out, t->out_bias, CUP_ACTIVATION_NONE));
    CUP_TRY(cup__attention_layer_slope(a));
    layer->mixed = t->router != NULL;
    if (layer->mixed) {
        const cup_experts_layer_options experts = experts_options(o);
        return cup_experts_layer_of(&layer->experts, list, t->router, t->up, t->down,
                                    o->experts_each, &experts);
    }
    CUP_TRY(cup__layer_begin(m, sizeof *m, list, call_mlp));
    CUP_TRY(cup_linear_layer_of(&m->up, list, t->up, t->up_bias, up));
    return cup_linear_layer_of(&m->down, list, t->down, t->down_bias, CUP_ACTIVATION_NONE);
}

cup_status cup_transformer_layer_of(cup_transformer_layer *layer, cup_parameters *list,
                                    const cup_transformer_tensors *tensors, int64_t heads,
                                    const cup_transformer_layer_options *options)
{
    cup_transformer_layer_options o;
    cup_transformer_tensors t;
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_transformer));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "transformer", &o, sizeof o, options) == CUP_OK &&
        cup__options_take(&c->error, "transformer: its tensors", &t, sizeof t, tensors) == CUP_OK &&
        cup__layer_probability(list, o.dropout) == CUP_OK) {
        layer->dropout = o.dropout;
        layer->rms = o.rmsnorm;
        if (tensors)
            take_tensors(layer, list, &t, heads, &o);
        else
            cup__fail(&c->error, CUP_ARGUMENT, "transformer under \"%s\": its tensors are NULL",
                      cup__parameters_prefix(list));
    }
    return cup__layer_end(layer, sizeof *layer);
}

/* The norm of x + delta, where delta may be NULL; *sum becomes x + delta. Dropout by itself and not
 * together with the sum, because sum and norm together are worth more: backward then adds the two
 * gradients of the sum on the way. */
static cup_tensor *add_norm(const cup_transformer_layer *layer, cup_context *c, bool second,
                            cup_tensor *x, cup_tensor *delta, cup_tensor **sum)
{
    const cup_layernorm_layer *norm = second ? &layer->norm2 : &layer->norm1;
    const cup_rmsnorm_layer *rms = second ? &layer->rmsnorm2 : &layer->rmsnorm1;
    cup_tensor *y = NULL;
    cup_parameters *list = layer->layer.parameters;
    *sum = x;
    if (layer->dropout > 0 && cup__rows_are_shared(list) && cup__parameters_is_training(list)) {
        cup__fail(&c->error, CUP_UNSUPPORTED,
                  "transformer under \"%s\": processes that share out tokens between blocks do not "
                  "know of dropout; set it to 0, or leave cup_parameters_sequence off",
                  cup__parameters_prefix(list));
        return NULL;
    }
    if (!delta)
        return layer->rms ? cup_rmsnorm_layer_call(rms, x) : cup_layernorm_layer_call(norm, x);
    delta = cup__layer_drop(&layer->layer, c, delta, layer->dropout);
    if (layer->rms)
        cup_add_rmsnorm(c, delta, x, rms->weight, rms->epsilon, &y, sum);
    else
        cup_add_layernorm(c, delta, x, norm->weight, norm->bias, norm->epsilon, &y, sum);
    return y;
}

/* The block; with `past`, behind what was read before. Nothing is kept of it but by the tape. */
cup_tensor *cup__transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                        cup_tensor **delta, cup_tensor **cost,
                                        const cup__reading *past)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    cup_tensor *none = NULL, *owed = NULL;
    delta = delta ? delta : &none;
    if (cost)
        *cost = NULL;
    if (!c)
        return *delta = NULL;
    cup_scope_open(c);
    cup_parameters *list = layer->layer.parameters;
    bool draws = layer->dropout > 0 && cup__parameters_is_training(list);
    if (!past && !layer->mixed && !draws && cup__layers_wait(list, x, *delta) != CUP_OK)
        return *delta = cup_scope_return(c, NULL);
    cup_tensor *y = cup_parameters_rows_join(list, add_norm(layer, c, false, x, *delta, &x));
    *delta = past ? cup__reading_attention(&layer->attention, y, past)
                  : cup_attention_layer_call(&layer->attention, y);
    y = cup_parameters_rows_join(list, add_norm(layer, c, true, x, *delta, &x));
    *delta = layer->mixed ? cup_experts_layer_pass(&layer->experts, y, cost ? &owed : NULL)
                          : cup_mlp_layer_call(&layer->mlp, y);
    cup__halves_end(c);
    bool whole = x && *delta;
    if (cup_scope_return_all(c, (cup_tensor *[]){x, *delta, owed}, 3) != CUP_OK || !whole)
        return *delta = NULL;
    if (cost)
        *cost = owed;
    return x;
}

cup_tensor *cup_transformer_layer_pass(const cup_transformer_layer *layer, cup_tensor *x,
                                       cup_tensor **delta)
{
    return cup__transformer_layer_pass(layer, x, delta, NULL, NULL);
}

cup_tensor *cup_transformer_layer_pass_cost(const cup_transformer_layer *layer, cup_tensor *x,
                                            cup_tensor **delta, cup_tensor **cost)
{
    return cup__transformer_layer_pass(layer, x, delta, cost, NULL);
}

cup_tensor *cup_transformer_layer_call(const cup_transformer_layer *layer, cup_tensor *x)
{
    cup_tensor *delta = NULL;
    x = cup__transformer_layer_pass(layer, x, &delta, NULL, NULL);
    if (!x)
        return NULL;
    cup_context *c = cup__parameters_context(layer->layer.parameters);
    cup_tensor *dropped = cup__layer_drop(&layer->layer, c, delta, layer->dropout);
    cup_tensor *y = cup_add(c, x, dropped);
    if (dropped != delta)
        cup_tensor_free(dropped);
    cup_tensor_free(delta);
    cup_tensor_free(x);
    return y;
}
