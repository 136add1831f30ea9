/* Attention of positions to each other. */
#ifdef CUP_LAYERS_H
/* How rotary positions are turned in models that read further than they first learned to: factor,
 * original, low, high, yarn, untruncated and amplitude of cup_rope. All 0: as they are.
 *
 * Or `dynamic`, with a factor and an original alone (dynamic NTK): a text of up to `original`
 * positions is turned as it is, and a longer one by a base that grows with its length, base *
 * (factor * length / original - factor + 1)^(size / (size - 2)) for heads of that size. The length
 * is that of x in a call, in training too, of all its documents together, and of the whole text
 * where processes have parts of it. What is read behind what was read before counts all of it: new
 * positions are turned by the base for all there then are, and kept keys stay as they were turned,
 * as they do in a cache of transformers. So a text that is read in pieces beyond `original` gives
 * other numbers than one that is read at once. */
typedef struct cup_rope_scaling {
    double factor, low, high;
    int64_t original;
    bool yarn, untruncated;
    double amplitude;
    bool dynamic;
} cup_rope_scaling;

/* Attention of x [B,T,width] to itself, in heads of width / heads features or of as many as is
 * said: "qkv" makes queries of all heads, then keys, then values; "out" joins what the heads
 * found. With qk_norm each head of queries and of keys goes through rmsnorm before positions turn
 * it, by "q_norm.weight" and "k_norm.weight" of the size of a head. "sinks" are a learned logit of
 * each head, of a key more whose value is 0. In a list that several
 * processes share out each has an equal part of the heads, of which the struct tells, and drops of
 * their probabilities what one process would. Where the heads of keys and values are fewer than the
 * processes, each has one of them, of which it makes an equal part and gets the rest from those
 * that have it, too. */
typedef struct cup_attention_layer {
    cup_layer layer;
    cup_linear_layer qkv, out;
    int heads, kv_heads, head_size;
    bool causal, rope;
    double rope_base, dropout;
    cup_rope_scaling rope_scaling;
    cup_tensor *q_norm, *k_norm; /* NULL without qk_norm */
    double epsilon;              /* of those */
    int64_t window;
    double soft_cap;
    cup_tensor *sinks;         /* NULL without */
    bool alibi;
    cup_tensor *slopes;        /* of its heads in f32, or f64 as the rest; NULL without alibi */
    int first_head, all_heads; /* that of all, where processes share them out; and those */
} cup_attention_layer;

typedef struct cup_attention_layer_options {
    size_t size;
    int64_t kv_heads; /* heads of keys and values, which divide the heads; 0: as many */
    bool causal;      /* a token sees none behind it */
    bool rope;        /* positions turn queries and keys, see cup_rope */
    double rope_base; /* 0: 10000 */
    double dropout;   /* of probabilities, in training */
    bool no_bias;
    cup_initializer initializer; /* of both weights, see cup_linear_layer_options */
    double deviation, gain;
    int64_t head_size; /* 0: width / heads */
    bool qk_norm;
    double epsilon; /* of qk_norm; 0: 1e-5 */
    cup_rope_scaling rope_scaling;
    int64_t window; /* causal alone: positions up to its own that one sees; 0: all */
    double soft_cap; /* makes soft_cap tanh(score / soft_cap) of a score, as in Gemma 2; 0: none */
    bool alibi;      /* scores lose by the distance, each head by its own slope: 2^(-8 i / heads)
                        for i from 1 where their number is a power of two (Press, Smith and Lewis
                        2021, "Train Short, Test Long") */
    bool sinks;
} cup_attention_layer_options;

CUP_API cup_status cup_attention_layer_new(cup_attention_layer *layer, cup_parameters *list,
                                           const char *name, int64_t width, int64_t heads,
                                           const cup_attention_layer_options *options);
CUP_API cup_tensor *cup_attention_layer_call(const cup_attention_layer *layer, cup_tensor *x);
#endif
#include <math.h>

#include "base/options.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "nn/layers.h"
#include "ops/rope/rope.h"
#include "tensor/tensor.h"

#define ROPE_BASE 10000
#define EPSILON 1e-5
#define MOST_FEATURES ((int64_t)1 << 30) /* of all heads together */

CUP__LAYER_CALL(attention)

cup_tensor *cup__layer_drop(const cup_layer *layer, cup_context *c, cup_tensor *x, double p)
{
    cup_comm *ring = cup_parameters_ring_comm(layer->parameters);
    if (!(p > 0) || !cup__parameters_is_training(layer->parameters))
        return x;
    return ring ? cup_comm_dropout(ring, x, p) : cup_dropout(c, x, p);
}

cup_status cup__layer_probability(cup_parameters *list, double p)
{
    if (p >= 0 && p < 1)
        return CUP_OK;
    return cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                     "layer under \"%s\": dropout must be at least 0 and below 1, not %g",
                     cup__parameters_prefix(list), p);
}

bool cup__rope_scaling_is_good(const cup_rope_scaling *s, double base, int64_t head_size)
{
    const cup__rope_rule rule = {.base = base,
                                 .factor = s->factor,
                                 .low = s->low,
                                 .high = s->high,
                                 .amplitude = s->amplitude,
                                 .original = s->original,
                                 .yarn = s->yarn,
                                 .untruncated = s->untruncated};
    bool others = s->yarn || s->untruncated || s->low > 0 || s->high > 0 || s->amplitude > 0;
    return cup__rope_rule_is_good(&rule) &&
           (!s->dynamic || (s->factor > 0 && s->original > 0 && head_size > 2 && !others));
}

cup_rope_options cup__attention_layer_rope(const cup_attention_layer *layer, int64_t length)
{
    const cup_rope_scaling *s = &layer->rope_scaling;
    cup_rope_options how = {.size = sizeof how,
                            .base = layer->rope_base,
                            .heads = layer->heads + layer->kv_heads};
    if (!s->dynamic) {
        how.factor = s->factor;
        how.original = s->original;
        how.low = s->low;
        how.high = s->high;
        how.yarn = s->yarn;
        how.untruncated = s->untruncated;
        how.amplitude = s->amplitude;
    } else if (length > s->original) {
        double size = layer->head_size, times = (double)length / (double)s->original;
        how.base *= pow(s->factor * times - s->factor + 1, size / (size - 2));
    }
    return how;
}

static cup_status check_attention(cup_parameters *list, int64_t width, int64_t heads,
                                  const cup_attention_layer_options *o)
{
    cup_context *c = cup__parameters_context(list);
    CUP_TRY(cup__layer_size(list, "width", width));
    CUP_TRY(cup__layer_size(list, "heads", heads));
    CUP_TRY(cup__layer_size(list, "kv_heads", o->kv_heads));
    CUP_TRY(cup__layer_probability(list, o->dropout));
    int64_t size = o->head_size ? o->head_size : width / heads;
    if ((width % heads != 0 && !o->head_size) || heads % o->kv_heads != 0)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": a width of %lld, %lld heads and %lld of keys and "
                         "values do not divide each other",
                         cup__parameters_prefix(list), (long long)width, (long long)heads,
                         (long long)o->kv_heads);
    if (size < 1 || size > MOST_FEATURES / heads)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": %lld heads of %lld features cannot be",
                         cup__parameters_prefix(list), (long long)heads, (long long)size);
    if (o->window < 0 || (o->window > 0 && !o->causal))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": a window of %lld positions cannot be; it is 1 or "
                         "more, of causal attention, or 0 for all",
                         cup__parameters_prefix(list), (long long)o->window);
    if (!(o->soft_cap >= 0 && isfinite(o->soft_cap)))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": a soft cap of %g cannot be; it is above 0, or 0 "
                         "for none",
                         cup__parameters_prefix(list), o->soft_cap);
    if (o->rope && (size % 2 != 0 || !(o->rope_base > 1 && isfinite(o->rope_base))))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": rope needs heads of an even size and a base "
                         "above 1, not %lld and %g",
                         cup__parameters_prefix(list), (long long)size, o->rope_base);
    if (!cup__rope_scaling_is_good(&o->rope_scaling, o->rope_base, size))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": nothing of rope_scaling may be below 0, and high "
                         "must be above low; yarn takes an original, and dynamic a factor, an "
                         "original and heads of over 2 features, and nothing else",
                         cup__parameters_prefix(list));
    return CUP_OK;
}

static cup_status check_shares(cup_parameters *list, int64_t heads, int64_t size,
                               const cup_attention_layer_options *o, int processes)
{
    cup_context *c = cup__parameters_context(list);
    if (heads % processes || !cup__keys_can_share(processes, o->kv_heads, size))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "attention under \"%s\": %lld heads and %lld of keys and values cannot be "
                         "shared out equally to %d processes; take a number of them that divides "
                         "both, or is a multiple of the latter whose share of %lld features of a "
                         "head is whole",
                         cup__parameters_prefix(list), (long long)heads, (long long)o->kv_heads,
                         processes, (long long)size);
    return processes > 1 ? cup__keys_share(list, processes, o->kv_heads) : CUP_OK;
}

cup_status cup__attention_layer_set(cup_attention_layer *layer, cup_parameters *list,
                                    int64_t width, int64_t heads, cup_attention_layer_options o,
                                    int processes)
{
    o.kv_heads = o.kv_heads == 0 ? heads : o.kv_heads;
    o.rope_base = o.rope_base == 0 ? ROPE_BASE : o.rope_base;
    CUP_TRY(check_attention(list, width, heads, &o));
    layer->head_size = (int)(o.head_size ? o.head_size : width / heads);
    CUP_TRY(check_shares(list, heads, layer->head_size, &o, processes));
    layer->heads = (int)heads / processes;
    layer->kv_heads = o.kv_heads < processes ? 1 : (int)o.kv_heads / processes;
    layer->causal = o.causal;
    layer->window = o.window;
    layer->soft_cap = o.soft_cap;
    layer->alibi = o.alibi;
    layer->all_heads = (int)heads;
    layer->first_head =
        processes > 1 ? cup_comm_rank(cup_parameters_comm(list)) * layer->heads : 0;
    layer->rope = o.rope;
    layer->rope_base = o.rope_base;
    layer->rope_scaling = o.rope_scaling;
    layer->dropout = o.dropout;
    layer->epsilon = o.epsilon == 0 ? EPSILON : o.epsilon;
    return CUP_OK;
}

cup_status cup__attention_layer_make(cup_attention_layer *layer, cup_parameters *list,
                                     int64_t width, int64_t heads, cup_attention_layer_options o,
                                     double shrink)
{
    CUP_TRY(cup__attention_layer_set(layer, list, width, heads, o,
                                     cup_comm_count(cup_parameters_comm(list))));
    cup_linear_layer_options linear = {.size = sizeof linear,
                                       .no_bias = o.no_bias,
                                       .initializer = o.initializer,
                                       .deviation = o.deviation,
                                       .gain = o.gain,
                                       .part = CUP_PART_ROWS};
    int64_t shared = o.kv_heads ? o.kv_heads : heads, size = layer->head_size;
    const int64_t sections[] = {heads * size, shared * size, shared * size};
    int64_t all = (heads + 2 * shared) * size;
    CUP_TRY(cup__linear_layer_make(&layer->qkv, list, "qkv", width, all, &linear, sections));
    linear.deviation *= shrink;
    linear.part = CUP_PART_COLUMNS;
    CUP_TRY(cup_linear_layer_new(&layer->out, list, "out", heads * size, width, &linear));
    CUP_TRY(cup__attention_layer_slope(layer));
    if (o.sinks)
        layer->sinks = cup_parameter_new(
            list, "sinks", 1, &heads,
            CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ZEROS,
                        .part = CUP_PART_ROWS));
    if (!o.qk_norm)
        return cup__parameters_context(list)->error.status;
    layer->q_norm = cup__layer_vector(list, "q_norm.weight", size, CUP_INITIALIZER_ONES);
    layer->k_norm = cup__layer_vector(list, "k_norm.weight", size, CUP_INITIALIZER_ONES);
    return cup__parameters_context(list)->error.status;
}

cup_status cup_attention_layer_new(cup_attention_layer *layer, cup_parameters *list,
                                   const char *name, int64_t width, int64_t heads,
                                   const cup_attention_layer_options *options)
{
    cup_attention_layer_options o;
    list = cup_parameters_under(list, name);
    CUP_TRY(cup__layer_begin(layer, sizeof *layer, list, call_attention));
    cup_context *c = cup__parameters_context(list);
    if (cup__options_take(&c->error, "attention", &o, sizeof o, options) == CUP_OK)
        cup__attention_layer_make(layer, list, width, heads, o, 1);
    return cup__layer_end(layer, sizeof *layer);
}

cup_tensor *cup__attention_layer_qkv(const cup_attention_layer *layer, cup_context *c,
                                     cup_tensor *x)
{
    cup_tensor *qkv = cup__keys_gather(layer, c, cup_linear_layer_call(&layer->qkv, x));
    if (!layer->q_norm || !qkv)
        return qkv;
    int64_t own = layer->heads, shared = layer->kv_heads, size = layer->head_size;
    const int64_t batch = cup_tensor_size(qkv, 0), length = cup_tensor_size(qkv, 1);
    const int64_t counts[] = {own, shared, shared};
    const int64_t apart[] = {batch, length, own + 2 * shared, size};
    const int64_t together[] = {batch, length, (own + 2 * shared) * size};
    cup_tensor *const norms[] = {layer->q_norm, layer->k_norm, NULL};
    cup_tensor *parts[3];
    qkv = cup_reshape(c, qkv, 4, apart);
    for (int64_t i = 0, from = 0; i < 3; from += counts[i++]) {
        const int64_t starts[] = {0, 0, from, 0}, sizes[] = {-1, -1, counts[i], -1};
        parts[i] = cup_slice(c, qkv, starts, 4, sizes, 4);
        if (norms[i])
            parts[i] = cup_rmsnorm(c, parts[i], norms[i], layer->epsilon);
    }
    return cup_reshape(c, cup_concat(c, parts, 3, 2), 3, together);
}

int64_t cup__attention_layer_window(const cup_attention_layer *layer, int64_t length)
{
    return layer->window < length ? layer->window : 0;
}

static cup_dtype scores_dtype(const cup_attention_layer *layer)
{
    return cup_tensor_dtype(layer->out.weight) == CUP_F64 ? CUP_F64 : CUP_F32;
}

cup_status cup__attention_layer_slope(cup_attention_layer *layer)
{
    cup_parameters *list = layer->layer.parameters;
    if (layer->alibi && layer->out.weight)
        layer->slopes = cup__parameters_slopes(list, scores_dtype(layer), layer->first_head,
                                               layer->heads, layer->all_heads);
    return cup__parameters_context(list)->error.status;
}

cup__layer_scores cup__attention_layer_scores(const cup_attention_layer *layer, cup_context *c)
{
    cup__layer_scores scores = {
        .soft_cap = layer->soft_cap, .slopes = layer->slopes, .sinks = layer->sinks};
    cup_dtype dtype = scores_dtype(layer);
    if (scores.sinks && cup_tensor_dtype(scores.sinks) != dtype)
        scores.sinks = cup_cast(c, scores.sinks, dtype);
    return scores;
}

/* Turns the heads of queries and keys by their positions. */
static cup_tensor *turn(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv)
{
    const int64_t swap[] = {0, 2, 1, 3};
    int64_t batch = cup_tensor_size(qkv, 0), length = cup_tensor_size(qkv, 1);
    int64_t parts = layer->heads + 2 * (int64_t)layer->kv_heads, size = layer->head_size;
    const int64_t apart[] = {batch, length, parts, size};
    const int64_t together[] = {batch, length, parts * size};
    const cup_rope_options how = cup__attention_layer_rope(layer, length);
    cup_tensor *x = cup_permute(c, cup_reshape(c, qkv, 4, apart), swap, 4);
    x = cup_rope(c, x, &how);
    return cup_reshape(c, cup_permute(c, x, swap, 4), 3, together);
}

/* Both parts that this process has of each sequence, turned by their places in the whole. */
typedef struct turning {
    cup__rope_attributes how;
    int64_t heads, place[2]; /* of all three; and of each part's first position */
} turning;

/* Rows of x [B,T,features] of that part, as heads. */
static cup_tensor *part_of(cup_tensor *x, const turning *t, int i)
{
    int64_t half = x->shape[1] / 2, size = x->shape[2] / t->heads;
    const cup__shape shape = {
        .dtype = x->dtype, .ndim = 4, .size = {x->shape[0], t->heads, half, size}};
    const int64_t stride[] = {x->stride[0], size * x->stride[2], x->stride[1], x->stride[2]};
    return cup__tensor_view(x, &shape, stride, i * half * x->stride[1]);
}

static cup_tensor *turned(cup_context *c, cup_tensor *x, const turning *t, bool inverse)
{
    cup_tensor *y = cup_tensor_new(c, x->dtype, 3, x->shape);
    cup__rope_attributes how = t->how;
    how.inverse = inverse;
    for (int i = 0; i < 2 && y; i++) {
        cup_tensor *in = part_of(x, t, i), *out = part_of(y, t, i);
        how.offset = t->place[i];
        if (in && out)
            cup__op_call(c, &cup__rows[CUP__OP_rope], &in, 1, &how, &out);
    }
    return y;
}

static cup_status turn_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    (void)count;
    out[0] = turned(c, in[0], attributes, false);
    return c->error.status;
}

static cup_status turn_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = turned(c, g->d_outputs[0], g->attributes, true);
    return c->error.status;
}

static const cup_custom_op turn_op = {.size = sizeof turn_op,
                                      .name = "turned parts",
                                      .output_count = 1,
                                      .attributes_size = sizeof(turning),
                                      .forward = turn_forward,
                                      .backward = turn_backward};

static cup_tensor *turn_parts(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv,
                              cup_comm *ring)
{
    int64_t half = qkv->shape[1] / 2, rank = cup_comm_rank(ring), count = cup_comm_count(ring);
    const cup_rope_options how = cup__attention_layer_rope(layer, count * qkv->shape[1]);
    const turning t = {.how = {.base = how.base,
                               .heads = how.heads,
                               .factor = how.factor,
                               .original = how.original,
                               .low = how.low,
                               .high = how.high,
                               .yarn = how.yarn,
                               .untruncated = how.untruncated,
                               .amplitude = how.amplitude},
                       .heads = layer->heads + 2 * (int64_t)layer->kv_heads,
                       .place = {rank * half, (2 * count - 1 - rank) * half}};
    cup_tensor *y = NULL;
    cup_custom(c, &turn_op, &qkv, 1, &t, &y);
    return y;
}

static cup_tensor *documents_of(const cup_attention_layer *layer)
{
    return cup__parameters_modes_of(layer->layer.parameters)->documents;
}

/* Of positions of which other processes have some as well. */
static cup_tensor *attend_round(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv,
                                cup_comm *ring, double dropout)
{
    if (qkv && cup_tensor_size(qkv, 1) % 2) {
        cup__fail(&c->error, CUP_SHAPE,
                  "attention under \"%s\": processes that have a part of each sequence have an "
                  "even number of its positions each, see cup_comm_part",
                  cup__parameters_prefix(layer->layer.parameters));
        return NULL;
    }
    if (qkv && cup__attention_layer_window(layer, cup_tensor_size(qkv, 1) * cup_comm_count(ring))) {
        cup__fail(&c->error, CUP_UNSUPPORTED,
                  "attention under \"%s\": processes that have a part of each sequence do not know "
                  "of windows; take sequences of up to %lld positions, or share out something else",
                  cup__parameters_prefix(layer->layer.parameters), (long long)layer->window);
        return NULL;
    }
    if (layer->soft_cap > 0 || layer->alibi || layer->sinks || documents_of(layer)) {
        cup__fail(&c->error, CUP_UNSUPPORTED,
                  "attention under \"%s\": processes that have a part of each sequence do not know "
                  "of soft caps, slopes, sinks and documents; share out something else",
                  cup__parameters_prefix(layer->layer.parameters));
        return NULL;
    }
    if (layer->rope && qkv)
        qkv = turn_parts(layer, c, qkv, ring);
    return qkv ? cup_comm_attention(ring, qkv, layer->heads,
                                    CUP_OPTIONS(cup_comm_attention_options,
                                                .kv_heads = layer->kv_heads,
                                                .causal = layer->causal,
                                                .dropout = dropout))
               : NULL;
}

static cup_tensor *attend(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv,
                          double dropout)
{
    if (layer->rope && qkv)
        qkv = turn(layer, c, qkv);
    int64_t length = qkv ? cup_tensor_size(qkv, 1) : 0;
    const cup__layer_scores scores = cup__attention_layer_scores(layer, c);
    return cup_qkv_attention(c, qkv, layer->heads,
                             CUP_OPTIONS(cup_qkv_attention_options, .kv_heads = layer->kv_heads,
                                         .causal = layer->causal, .dropout = dropout,
                                         .window_left =
                                             cup__attention_layer_window(layer, length),
                                         .soft_cap = scores.soft_cap, .slopes = scores.slopes,
                                         .sinks = scores.sinks,
                                         .query_offsets = documents_of(layer)));
}

cup_tensor *cup_attention_layer_call(const cup_attention_layer *layer, cup_tensor *x)
{
    cup_context *c = cup__layer_context((const cup_layer *)layer, x);
    if (!c)
        return NULL;
    if (cup_tensor_ndim(x) != 3) {
        cup__fail(&c->error, CUP_SHAPE,
                  "attention under \"%s\": its input has %d dimensions; it must be [B,T,width]",
                  cup__parameters_prefix(layer->layer.parameters), cup_tensor_ndim(x));
        return NULL;
    }
    bool training = cup__parameters_is_training(layer->layer.parameters);
    double dropout = training ? layer->dropout : 0;
    cup_tensor *qkv = cup__attention_layer_qkv(layer, c, x);
    cup_comm *ring = cup_parameters_ring_comm(layer->layer.parameters);
    const cup_comm *among = cup_parameters_comm(layer->layer.parameters);
    uint32_t was = c->random.share;
    if (among)
        c->random.share = (uint32_t)cup_comm_count(among) << 16 | (uint32_t)cup_comm_rank(among);
    cup_tensor *o = ring ? attend_round(layer, c, qkv, ring, dropout)
                         : attend(layer, c, qkv, dropout);
    c->random.share = was;
    return cup_linear_layer_call(&layer->out, o);
}
