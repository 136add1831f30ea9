/* The gradient of attention in public ops, for second derivatives: scores, probabilities and all
 * are made whole. */
#include <math.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/attention/attention.h"

#define UNSEEN 1e30 /* under what any score of a key that is seen is */
#define DIMS 5

/* Tensors of a call as [B, G, H / G, T or S, D], so that what heads share broadcasts. */
typedef struct heads {
    cup_context *c;
    int64_t q[DIMS], k[DIMS];
    double scale, dropout;
    int64_t sequence; /* of dropout's numbers */
    cup__attention_mask mask;
    cup__attention_score score; /* its tensors are of the tape */
} heads;

/* What the probabilities were made of. */
typedef struct softened {
    cup_tensor *p;
    cup_tensor *slope;    /* of changed scores by scaled ones; NULL: 1 */
    cup_tensor *distance; /* [T, S], with slopes */
    cup_tensor *sink;     /* the probabilities of the sinks */
    cup_tensor *open;     /* 1 where a bias hides nothing, else 0; NULL: it hides nothing */
} softened;

static heads heads_of(cup_context *c, const cup__shape *q, const cup__shape *k, double scale)
{
    int64_t groups = k->size[1], each = groups ? q->size[1] / groups : 0;
    return (heads){.c = c,
                   .q = {q->size[0], groups, each, q->size[2], q->size[3]},
                   .k = {k->size[0], groups, 1, k->size[2], k->size[3]},
                   .scale = scale != 0 ? scale : 1 / sqrt((double)q->size[3])};
}

/* One number for each head. */
static cup_tensor *of_heads(const heads *h, cup_tensor *t)
{
    return cup_reshape(h->c, t, DIMS, (int64_t[]){1, h->q[1], h->q[2], 1, 1});
}

/* A bias with its heads as groups of heads. */
static cup_tensor *grouped(const heads *h, cup_tensor *bias)
{
    if (!bias)
        return NULL;
    bool alike = bias->shape[1] == 1;
    const int64_t shape[] = {bias->shape[0], alike ? 1 : h->q[1], alike ? 1 : h->q[2],
                             bias->shape[2], bias->shape[3]};
    return cup_reshape(h->c, bias, DIMS, shape);
}

static cup_tensor *distances(const heads *h, cup_dtype dtype)
{
    double ahead = (double)(h->k[3] - h->q[3]), end = (double)h->k[3];
    cup_tensor *query = cup_arange(h->c, dtype, ahead, end, NULL);
    cup_tensor *key = cup_arange(h->c, dtype, 0, end, NULL);
    query = cup_reshape(h->c, query, 2, (int64_t[]){h->q[3], 1});
    return cup_abs(h->c, cup_sub(h->c, query, key));
}

static cup_tensor *change(const heads *h, cup_tensor *score, softened *to)
{
    cup_context *c = h->c;
    if (h->score.soft_cap > 0) {
        cup_tensor *t = cup_tanh(c, cup_scale(c, score, 1 / h->score.soft_cap));
        score = cup_scale(c, t, h->score.soft_cap);
        to->slope = t ? cup_sub(c, cup__number(c, t, 1), cup_square(c, t)) : NULL;
    }
    if (h->score.slopes && score) {
        to->distance = distances(h, score->dtype);
        score = cup_sub(c, score, cup_mul(c, of_heads(h, h->score.slopes), to->distance));
    }
    if (h->score.bias && score) {
        /* What is hidden by -infinity takes part with a weight of 0. */
        cup_tensor *bias = grouped(h, cup__widen(c, h->score.bias));
        cup_tensor *least = bias ? cup__number(c, bias, -UNSEEN) : NULL;
        to->open = cup_cast(c, cup_greater(c, bias, least), score->dtype);
        score = cup_add(c, score, cup_maximum(c, bias, least));
    }
    return score;
}

/* Over the keys, and the sink where there is one. */
static cup_tensor *soften(const heads *h, cup_tensor *score, softened *to)
{
    cup_context *c = h->c;
    if (!h->score.sinks)
        return cup_softmax(c, score, -1);
    const int64_t *q = h->q, shape[] = {q[0], q[1], q[2], q[3], 1};
    const int64_t part[] = {q[0], q[1], q[2], q[3], h->k[3]}, ends[] = {0, 0, 0, 0, h->k[3]};
    cup_tensor *sinks = cup_broadcast(c, of_heads(h, h->score.sinks), DIMS, shape);
    cup_tensor *all = cup_softmax(c, cup_concat(c, (cup_tensor *[]){score, sinks}, 2, -1), -1);
    to->sink = cup_slice(c, all, ends, DIMS, shape, DIMS);
    return cup_slice(c, all, (int64_t[DIMS]){0}, DIMS, part, DIMS);
}

/* A query that sees nothing has no probabilities: they are all 0. */
static softened probabilities(const heads *h, cup_tensor *q, cup_tensor *k)
{
    cup_context *c = h->c;
    softened to = {NULL};
    cup_tensor *score = cup_scale(c, cup_matmul(c, q, k, false, true), h->scale);
    score = change(h, score, &to);
    if ((!h->mask.causal && !h->mask.window && !to.open) || !score) {
        to.p = soften(h, score, &to);
        return to;
    }
    cup_tensor *mask = cup__attention_mask_ones(c, &h->mask, score->dtype);
    if (to.open)
        mask = cup_mul(c, to.open, mask);
    cup_tensor *hidden = cup_sub(c, mask, cup__number(c, score, 1));
    score = cup_add(c, cup_mul(c, score, mask), cup_scale(c, hidden, UNSEEN));
    to.p = cup_mul(c, soften(h, score, &to), mask);
    return to;
}

static cup_tensor *split(const heads *h, cup_tensor *t, const int64_t *shape)
{
    return cup_reshape(h->c, cup__widen(h->c, t), DIMS, shape);
}

/* What dropout left of t, which stands for probabilities. */
static cup_tensor *dropped(const heads *h, cup_tensor *t)
{
    if (h->dropout == 0 || !t)
        return t;
    const int64_t shape[] = {h->q[0], h->q[1] * h->q[2], h->q[3], h->k[3]};
    cup_tensor *kept = cup__attention_kept(h->c, t->dtype, 4, shape, h->dropout, h->sequence);
    return cup_mul(h->c, t, cup_reshape(h->c, kept, DIMS, t->shape));
}

/* Summed over the heads that share it, in the shape and dtype of the input. */
static cup_tensor *joined(const heads *h, cup_tensor *d, const int64_t *shape,
                          const cup__shape *input)
{
    cup__shape sum = {.ndim = DIMS};
    for (int i = 0; i < DIMS; i++)
        sum.size[i] = shape[i];
    d = cup_cast(h->c, cup__sum_to(h->c, d, &sum), input->dtype);
    return cup_reshape(h->c, d, input->ndim, input->size);
}

/* Gradients of three tensors, and of the optional inputs. */
static void back(const heads *h, cup_tensor *const in[3], const cup__shape shape[3],
                 cup_tensor *d_o, cup_tensor *d_in[3], cup_tensor *d_extra[CUP__EXTRAS])
{
    cup_context *c = h->c;
    cup_tensor *q = split(h, in[0], h->q), *k = split(h, in[1], h->k), *v = split(h, in[2], h->k);
    cup_tensor *dy = split(h, d_o, h->q);
    softened s = probabilities(h, q, k);
    cup_tensor *p = s.p;
    cup_tensor *dp = cup_mul(c, p, dropped(h, cup_matmul(c, dy, v, false, true)));
    cup_tensor *sum = cup_sum(c, dp, (int64_t[]){DIMS - 1}, 1, true);
    cup_tensor *ds = cup_sub(c, dp, cup_mul(c, p, sum));
    const int64_t per_head[] = {0, 3, 4}, flat[] = {h->q[1] * h->q[2]};
    if (s.distance)
        d_extra[CUP__SLOPES] = cup_scale(
            c, cup_reshape(c, cup_sum(c, cup_mul(c, ds, s.distance), per_head, 3, false), 1, flat),
            -1);
    if (s.sink)
        d_extra[CUP__SINKS] = cup_scale(
            c, cup_reshape(c, cup_sum(c, cup_mul(c, s.sink, sum), per_head, 3, false), 1, flat),
            -1);
    if (h->score.bias && ds) {
        const int64_t whole[] = {h->q[0], h->q[1] * h->q[2], h->q[3], h->k[3]};
        cup__shape shape_of_bias = cup__shape_of(h->score.bias);
        d_extra[CUP__BIAS] = cup_cast(
            c, cup__sum_to(c, cup_reshape(c, ds, 4, whole), &shape_of_bias), h->score.bias->dtype);
    }
    ds = cup_scale(c, s.slope ? cup_mul(c, ds, s.slope) : ds, h->scale);
    d_in[0] = joined(h, cup_matmul(c, ds, k, false, false), h->q, &shape[0]);
    d_in[1] = joined(h, cup_matmul(c, ds, q, true, false), h->k, &shape[1]);
    d_in[2] = joined(h, cup_matmul(c, dropped(h, p), dy, true, false), h->k, &shape[2]);
}

static cup__attention_score score_of(const cup__grad *g, double soft_cap, int first)
{
    const cup__call call = {.in = (cup_tensor **)g->in, .in_count = g->in_count};
    return cup__attention_score_make(soft_cap, &call, first);
}

static void hand_out(cup__grad *g, int first, cup_tensor *const *d_extra)
{
    for (int i = 0; i < CUP__EXTRAS && first + i < g->in_count; i++)
        if (g->in[first + i] && g->wanted[first + i])
            g->d_in[first + i] = d_extra[i];
}

static cup_status refuse_extras(cup__grad *g, int first)
{
    static const char *const names[CUP__EXTRAS] = {[CUP__QUERY_OFFSETS] = "offsets",
                                                   [CUP__KEY_OFFSETS] = "offsets",
                                                   [CUP__KEY_BLOCKS] = "key_blocks"};
    for (int i = 0; i < CUP__EXTRAS && first + i < g->in_count; i++)
        if (names[i] && g->in[first + i])
            return cup__fail(&g->c->error, CUP_UNSUPPORTED,
                             "the gradient of %s with %s cannot be recorded; leave them out "
                             "where second derivatives are wanted",
                             g->row->name, names[i]);
    return CUP_OK;
}

cup_status cup__attention_composed(cup__grad *g)
{
    const cup__attention_attributes *a = g->attributes;
    CUP_TRY(refuse_extras(g, 3));
    if (g->in_shape[2].size[3] != g->in_shape[1].size[3])
        return cup__fail(&g->c->error, CUP_UNSUPPORTED,
                         "the gradient of attention to values of another size than keys cannot be "
                         "recorded; fill the smaller up with zeros");
    heads h = heads_of(g->c, &g->in_shape[0], &g->in_shape[1], a->scale);
    h.mask = cup__attention_mask_make(a->causal, a->top_left, a->window_left, a->window_right,
                                      NULL, NULL, h.q[3], h.k[3]);
    h.dropout = a->dropout;
    h.sequence = g->sequence;
    h.score = score_of(g, a->soft_cap, 3);
    cup_tensor *d_extra[CUP__EXTRAS] = {NULL};
    back(&h, g->in, g->in_shape, g->d_out[0], g->d_in, d_extra);
    hand_out(g, 3, d_extra);
    return g->c->error.status;
}

/* [B,T,heads D] as [B,heads,T,D], and back. */
static cup_tensor *turned_in(cup_context *c, cup_tensor *t, const cup__shape *to)
{
    const int64_t shape[] = {to->size[0], to->size[2], to->size[1], to->size[3]};
    return cup_permute(c, cup_reshape(c, t, 4, shape), (int64_t[]){0, 2, 1, 3}, 4);
}

static cup_tensor *turned_out(cup_context *c, cup_tensor *t, const cup__shape *from)
{
    const int64_t shape[] = {from->size[0], from->size[2], from->size[1] * from->size[3]};
    return cup_reshape(c, cup_permute(c, t, (int64_t[]){0, 2, 1, 3}, 4), 3, shape);
}

cup_status cup__qkv_attention_composed(cup__grad *g)
{
    const cup__qkv_attention_attributes *a = g->attributes;
    cup_context *c = g->c;
    const int64_t *size = g->in_shape[0].size;
    int kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    int64_t count[3] = {a->heads, kv_heads, kv_heads}, starts[3] = {0};
    int64_t width = size[2] / (a->heads + 2 * kv_heads);
    cup__shape shape[3];
    cup_tensor *in[3], *d_in[3];
    CUP_TRY(refuse_extras(g, 1));
    for (int i = 0; i < 3; i++) {
        const int64_t part[] = {size[0], size[1], count[i] * width};
        shape[i] = (cup__shape){g->in_shape[0].dtype, 4, {size[0], count[i], size[1], width}};
        in[i] = turned_in(c, cup_slice(c, g->in[0], starts, 3, part, 3), &shape[i]);
        starts[2] += part[2];
    }
    heads h = heads_of(c, &shape[0], &shape[1], a->scale);
    h.mask = cup__attention_mask_make(a->causal, false, a->window_left, a->window_right, NULL, NULL,
                                      h.q[3], h.k[3]);
    h.dropout = a->dropout;
    h.sequence = g->sequence;
    h.score = score_of(g, a->soft_cap, 1);
    cup_tensor *d_extra[CUP__EXTRAS] = {NULL};
    back(&h, in, shape, turned_in(c, g->d_out[0], &shape[0]), d_in, d_extra);
    hand_out(g, 1, d_extra);
    for (int i = 0; i < 3; i++)
        d_in[i] = turned_out(c, d_in[i], &shape[i]);
    g->d_in[0] = cup_concat(c, d_in, 3, 2);
    return c->error.status;
}
