/* The sizes of what cancels inside gradients: sums of a few large terms that may leave little, all
 * of which are rounded. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "ops/attention/attention.h"
#include "prof/draw.h"
#include "prof/gradient_bound.h"

/* Epsilons of f32 that they may be off by: each is a product of what was rounded and divided, by a
 * size that counts twice, and is added to a sum of n, of which errors grow as everywhere. */
static double share_of(double n)
{
    return fmax(2, sqrt(n) / 8) * 0x1p-23;
}

static const void *attribute_of(const cup__gradient_call *g, const char *name)
{
    static const double zero = 0;
    const char *all = g->attributes;
    for (const cup__attribute *a = g->row->attributes; a && a->name; a++)
        if (!strcmp(a->name, name))
            return all ? all + a->offset : (const void *)&zero;
    return NULL;
}

/* What flows back to the op's first result. */
static double back_at(const cup__gradient_call *g, int64_t i)
{
    return g->back[0] ? cup__element(g->back[0], i) : 0;
}

static int64_t inner_of(const cup_tensor *x, int axis)
{
    int64_t inner = 1;
    for (int d = axis + 1; d < x->ndim; d++)
        inner *= x->shape[d];
    return inner;
}

/* Which elements of x have their statistics in common: of each `sample` elements, `channels` of
 * them `inner` apart, those of `per` neighbouring channels. gamma has an element a channel. */
typedef struct layout {
    int64_t sample, channels, inner, per, groups;
    bool centred;
} layout;

static layout layout_of(const cup__gradient_call *g, const cup_tensor *x)
{
    const int *axis = attribute_of(g, "axis"), *groups = attribute_of(g, "groups");
    layout l = {.centred = !strstr(g->row->name, "rmsnorm")};
    int d = axis && *axis >= 0 ? *axis : x->ndim - 1;
    l.channels = l.per = x->shape[d];
    l.inner = axis ? inner_of(x, d) : 1;
    l.sample = !axis ? l.channels : groups ? x->count / x->shape[0] : x->count;
    if (axis)
        l.per = groups && *groups > 0 ? l.channels / *groups : 1;
    l.groups = x->count / l.sample * (l.channels / l.per);
    return l;
}

static int64_t channel_of(const layout *l, int64_t k)
{
    return k / l->inner % l->channels;
}

static int64_t group_of(const layout *l, int64_t k)
{
    return k / l->sample * (l->channels / l->per) + channel_of(l, k) / l->per;
}

/* Of a group: what its elements are divided by, and means over them, of sizes for the last two. */
typedef struct statistics {
    double mean, size, weighed, flowing;
} statistics;

/* The value whose statistics they are: of add_layernorm the sum of two. */
static double input_at(const cup__gradient_call *g, int64_t k)
{
    bool adds = !strncmp(g->row->name, "add_", 4);
    return cup__element(g->in[0], k) + (adds ? cup__element(g->in[1], k) : 0);
}

static double flowing_at(const cup__gradient_call *g, const layout *l, int64_t k)
{
    const cup_tensor *gamma = g->in[strncmp(g->row->name, "add_", 4) ? 1 : 2];
    return fabs(back_at(g, k) * (gamma ? cup__element(gamma, channel_of(l, k)) : 1));
}

static void take_statistics(const cup__gradient_call *g, const layout *l, statistics *s)
{
    int64_t count = g->in[0]->count;
    double n = (double)(count / l->groups), eps = *(const double *)attribute_of(g, "eps");
    for (int64_t k = 0; k < count && l->centred; k++)
        s[group_of(l, k)].mean += input_at(g, k) / n;
    for (int64_t k = 0; k < count; k++) {
        statistics *of = &s[group_of(l, k)];
        of->size += pow(input_at(g, k) - of->mean, 2) / n;
    }
    for (int64_t i = 0; i < l->groups; i++)
        s[i].size = sqrt(s[i].size + (eps > 0 ? eps : attribute_of(g, "axis") ? 1e-5 : 0));
    for (int64_t k = 0; k < count; k++) {
        statistics *of = &s[group_of(l, k)];
        double h = flowing_at(g, l, k);
        of->weighed += h * fabs(input_at(g, k) - of->mean) / of->size / n;
        of->flowing += l->centred ? h / n : 0;
    }
}

/* dx = (h - x^ mean(h x^) - mean h) / size, with h = dy gamma, and x^ what the norm makes of x, of
 * which all in a group are off by what the mean of x is rounded by. */
static void bound_norm(const cup__gradient_call *g, double *bound)
{
    layout l = layout_of(g, g->in[0]);
    statistics *all = cup__calloc((size_t)l.groups, sizeof *all);
    if (all)
        take_statistics(g, &l, all);
    double share = share_of((double)(g->in[0]->count / l.groups));
    for (int64_t k = 0; all && k < g->in[0]->count; k++) {
        const statistics *s = &all[group_of(&l, k)];
        double normed = fabs(input_at(g, k) - s->mean) / s->size;
        double off = fabs(s->mean) / s->size * (s->weighed + normed * s->flowing);
        double terms = flowing_at(g, &l, k) + normed * s->weighed + s->flowing + off;
        bound[k] += share * terms / s->size;
    }
    cup__free(all);
}

/* A row of softmax: n elements, `step` apart. */
typedef struct row_of {
    int64_t begin, step, n;
} row_of;

static double logsumexp(const cup_tensor *x, row_of r)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r.n; j++)
        most = fmax(most, cup__element(x, r.begin + j * r.step));
    for (int64_t j = 0; j < r.n && isfinite(most); j++)
        sum += exp(cup__element(x, r.begin + j * r.step) - most);
    return most + log(sum);
}

/* Of softmax dx = y (dy - sum of y dy), of log_softmax dx = dy - p sum of dy. */
static void bound_softmax_row(const cup__gradient_call *g, row_of r, bool is_log, double *bound)
{
    double lse = logsumexp(g->in[0], r), sum = 0;
    for (int64_t j = 0; j < r.n; j++) {
        int64_t k = r.begin + j * r.step;
        sum += fabs(back_at(g, k)) * (is_log ? 1 : exp(cup__element(g->in[0], k) - lse));
    }
    for (int64_t j = 0; j < r.n; j++) {
        int64_t k = r.begin + j * r.step;
        double p = exp(cup__element(g->in[0], k) - lse), own = fabs(back_at(g, k));
        bound[k] += share_of((double)r.n) * (is_log ? own + p * sum : p * (own + sum));
    }
}

static void bound_softmax(const cup__gradient_call *g, bool is_log, double *bound)
{
    const cup_tensor *x = g->in[0];
    int axis = *(const int *)attribute_of(g, "axis");
    axis = axis < 0 ? axis + x->ndim : axis;
    int64_t inner = inner_of(x, axis), n = x->ndim ? x->shape[axis] : 1;
    for (int64_t i = 0; i < x->count / n; i++)
        bound_softmax_row(g, (row_of){i / inner * inner * n + i % inner, inner, n}, is_log, bound);
}

/* The call of attention with other values, all of whose probabilities count. */
static cup_tensor *attend(const cup__gradient_call *g, cup_tensor *values)
{
    cup_context *c = values ? values->context : NULL;
    _Alignas(16) char attributes[CUP__DRAWN_ATTRIBUTES];
    cup_tensor *in[CUP__DRAWN_INPUTS], *out[CUP__MAX_OUT] = {NULL};
    if (!values || g->in_count > CUP__DRAWN_INPUTS)
        return NULL;
    for (int i = 0; i < g->in_count; i++)
        in[i] = i == 2 || !g->in[i] ? g->in[i] : cup_detach(g->in[i]);
    in[2] = values;
    memset(attributes, 0, sizeof attributes);
    if (g->attributes)
        memcpy(attributes, g->attributes, g->row->attributes_size);
    for (const cup__attribute *a = g->row->attributes; a && a->name; a++)
        if (!strcmp(a->name, "dropout"))
            memset(attributes + a->offset, 0, sizeof(double));
    return cup__op_call(c, g->row, in, g->in_count, attributes, out) ? out[0] : NULL;
}

static void add_scaled(double *bound, const cup_tensor *t, double by)
{
    for (int64_t k = 0; t && k < t->count; k++)
        bound[k] += by * cup__element(t, k);
}

/* What flows back to each row of logits, a mean over those that have a target. */
static double of_each_row(const cup__gradient_call *g, const cup_tensor *targets)
{
    double ignored = (double)*(const int64_t *)attribute_of(g, "ignore_index");
    int64_t counted = 0;
    for (int64_t r = 0; r < targets->count; r++)
        counted += cup__element(targets, r) != ignored;
    return counted ? fabs(back_at(g, 0)) / (double)counted : 0;
}

/* Of a row of logits: p (1 + 2 z lse) less what the target has of the class. Both are nearly one
 * where a class is nearly certain. */
static void bound_loss_row(const cup__gradient_call *g, const cup_tensor *logits, int64_t r,
                           double target, double *bound)
{
    double smoothing = *(const double *)attribute_of(g, "label_smoothing");
    double z = *(const double *)attribute_of(g, "z_loss");
    int64_t width = logits->shape[logits->ndim - 1];
    int64_t classes = *(const int64_t *)attribute_of(g, "columns");
    classes = classes > 0 ? classes : width;
    double lse = logsumexp(logits, (row_of){r * width, 1, classes});
    for (int64_t k = 0; k < classes; k++) {
        double p = exp(cup__element(logits, r * width + k) - lse) * (1 + 2 * z * fabs(lse));
        p += smoothing / (double)classes + ((double)k == target ? 1 - smoothing : 0);
        bound[r * width + k] += share_of((double)classes) * p;
    }
}

static void bound_loss(const cup__gradient_call *g, const cup_tensor *logits,
                       const cup_tensor *targets, double *bound)
{
    double ignored = (double)*(const int64_t *)attribute_of(g, "ignore_index");
    double by = of_each_row(g, targets);
    double *own = cup__calloc((size_t)logits->count + 1, sizeof *own);
    for (int64_t r = 0; own && r < targets->count; r++)
        if (cup__element(targets, r) != ignored)
            bound_loss_row(g, logits, r, cup__element(targets, r), own);
    for (int64_t k = 0; own && k < logits->count; k++)
        bound[k] += by * own[k];
    cup__free(own);
}

/* The same behind a product: dx sums it times the weight, dweight times x. */
static void bound_linear_loss(const cup__gradient_call *g, int which, double *bound)
{
    cup_tensor *x = cup_detach(g->in[0]), *w = cup_detach(g->in[1]);
    cup_context *c = x->context;
    int64_t wide = w->shape[1], rows = wide ? x->count / wide : 0;
    x = cup_reshape(c, x, 2, (int64_t[]){rows, wide});
    cup_tensor *logits = cup_linear(c, x, w, NULL), *off = NULL;
    cup__shape shape = {.dtype = CUP_F64, .ndim = 2, .size = {rows, w->shape[0]}};
    off = logits ? cup__full(c, &shape, 0) : NULL;
    if (off)
        bound_loss(g, logits, g->in[2], off->data);
    off = which == 0 ? cup_matmul(c, off, cup_abs(c, w), false, false)
                     : cup_matmul(c, off, cup_abs(c, x), true, false);
    add_scaled(bound, off, 1);
    cup__error_clear(&c->error);
}

/* Whether each row has one number only, as where a view repeats it: what rounds one product of two
 * such rows rounds all of them, and errors add up instead of meeting each other. */
static bool repeats(const cup_tensor *t)
{
    int64_t width = t->shape[t->ndim - 1];
    for (int64_t k = 0; k < t->count; k++)
        if (cup__element(t, k) != cup__element(t, k - k % width))
            return false;
    return width > 1;
}

/* How far the scores of each query may be off, [B,H,T,1]: the largest of them as sums of sizes. */
static cup_tensor *of_scores(cup_tensor *q, cup_tensor *k, double scale)
{
    cup_context *c = q->context;
    int64_t batch = q->shape[0], heads = q->shape[1], groups = k->shape[1], size = q->shape[3];
    int64_t steps = q->shape[2], each = groups ? heads / groups : 1;
    cup_tensor *rows = cup_reshape(c, cup_abs(c, q), 4,
                                   (int64_t[]){batch, groups, each * steps, size});
    cup_tensor *scores = cup_matmul(c, rows, cup_abs(c, k), false, true);
    double share = repeats(q) && repeats(k) ? 0x1p-23 * (double)size / 8 : 0;
    scores = cup_max(c, scores, (int64_t[]){3}, 1, true);
    scores = cup_reshape(c, scores, 4, (int64_t[]){batch, heads, steps, 1});
    return cup_scale(c, scores, scale * fmax(share, share_of((double)size)));
}

/* Scores have the slopes p (d - mean of d), of what flows back to each key's probability, where d
 * is as large as the sizes of d_o times those of v; dq sums them times k, dk times q, and dv sums
 * p d_o. Each p is off by what its score and the logsumexp are. */
static void bound_attention(const cup__gradient_call *g, int which, double *bound)
{
    cup_tensor *q = cup_detach(g->in[0]), *k = cup_detach(g->in[1]), *v = cup_detach(g->in[2]);
    cup_context *c = q->context;
    double scale = *(const double *)attribute_of(g, "scale");
    scale = scale > 0 ? scale : 1 / sqrt((double)q->shape[3]);
    cup_tensor *back = cup_abs(c, g->back[0]), *off = of_scores(q, k, scale), *of_keys = NULL;
    cup_tensor *size = cup_mul(c, back, attend(g, cup_abs(c, v)));
    cup_tensor *share = cup_add(c, cup_scale(c, off, 4 * scale),
                                cup_full(c, CUP_F64, 0, NULL,
                                         2 * scale * share_of((double)v->shape[2])));
    size = cup_mul(c, cup_sum(c, size, (int64_t[]){3}, 1, true), share);
    if (which == 0) {
        cup_tensor *keys = attend(g, cup_abs(c, k));
        add_scaled(bound, cup_mul(c, size, keys), 1);
    } else {
        cup__shape shape = cup__shape_of(which == 1 ? k : v);
        cup_tensor *values = cup_require_grad(cup__full(c, &shape, 0));
        cup_tensor *each = which == 1 ? cup_mul(c, size, cup_abs(c, q))
                                      : cup_mul(c, cup_scale(c, off, 2), back);
        cup_tensor *through = cup_mul(c, attend(g, values), each);
        if (cup_gradients(c, cup_sum(c, through, NULL, 0, false), &values, 1, &of_keys) == CUP_OK)
            add_scaled(bound, of_keys, 1);
    }
    cup__error_clear(&c->error);
}

/* d_o times v for each key of each query, [B,H,T,S]. */
static cup_tensor *of_probabilities(cup_tensor *back, cup_tensor *v)
{
    int64_t groups = v->shape[1];
    const int64_t by_group[] = {v->shape[0], groups, groups ? -1 : 0, v->shape[3]};
    const int64_t pairs[] = {back->shape[0], back->shape[1], back->shape[2], v->shape[2]};
    cup_context *c = v->context;
    return cup_reshape(c, cup_matmul(c, cup_reshape(c, back, 4, by_group), v, false, true), 4,
                       pairs);
}

static cup_tensor *mean_of(cup_tensor *p, cup_tensor *d)
{
    cup_context *c = p ? p->context : NULL;
    return p ? cup_sum(c, cup_mul(c, p, d), (int64_t[]){3}, 1, true) : NULL;
}

/* The slopes of scores themselves, p (d - mean of d), summed over what a bias met: both terms are
 * rounded, and by what p is off it is off by as large a part. With values that are 1 for one key
 * and 0 for others attention gives p. */
static void bound_bias(const cup__gradient_call *g, const cup_tensor *bias, double *bound)
{
    cup_tensor *q = cup_detach(g->in[0]), *k = cup_detach(g->in[1]), *v = cup_detach(g->in[2]);
    cup_context *c = q->context;
    int64_t keys = v->shape[2];
    const int64_t each_key[] = {v->shape[0], v->shape[1], keys, keys};
    double scale = *(const double *)attribute_of(g, "scale");
    double share = share_of(fmax((double)keys, (double)v->shape[3]));
    cup_tensor *off = of_scores(q, k, scale > 0 ? scale : 1 / sqrt((double)q->shape[3]));
    cup_tensor *p = attend(g, cup_broadcast(c, cup_eye(c, CUP_F64, keys, keys, NULL), 4, each_key));
    cup_tensor *d = of_probabilities(g->back[0], v);
    cup_tensor *sizes = of_probabilities(cup_abs(c, g->back[0]), cup_abs(c, v));
    cup_tensor *apart = cup_abs(c, cup_sub(c, d, mean_of(p, d)));
    apart = cup_mul(c, cup_add(c, apart, mean_of(p, apart)), cup_scale(c, off, 4));
    sizes = cup_scale(c, cup_add(c, sizes, mean_of(p, sizes)), share);
    cup__shape shape = cup__shape_of(bias);
    add_scaled(bound, cup__sum_to(c, cup_mul(c, p, cup_add(c, apart, sizes)), &shape), 1);
    cup__error_clear(&c->error);
}

/* Those of attention that a call of qkv_attention has too. */
static void take_attributes(const cup__gradient_call *g, const cup__row *to, char *attributes)
{
    static const size_t size[] = {[CUP__KIND_INT] = sizeof(int),
                                  [CUP__KIND_INT64] = sizeof(int64_t),
                                  [CUP__KIND_FLOAT] = sizeof(double),
                                  [CUP__KIND_BOOL] = sizeof(bool)};
    for (const cup__attribute *a = to->attributes; a && a->name; a++) {
        const void *from = g->attributes ? attribute_of(g, a->name) : NULL;
        if (from)
            memcpy(attributes + a->offset, from, size[a->kind]);
    }
}

/* `count` heads from `first` on of [B,T,heads D], as [B,count,T,D]. */
static cup_tensor *heads_of(cup_tensor *t, int64_t heads, int64_t first, int64_t count)
{
    cup_context *c = t->context;
    int64_t batch = t->shape[0], steps = t->shape[1], size = t->shape[2] / heads;
    t = cup_reshape(c, t, 4, (int64_t[]){batch, steps, heads, size});
    t = cup_slice(c, t, (int64_t[]){0, 0, first, 0}, 4, (int64_t[]){batch, steps, count, size}, 4);
    return cup_permute(c, t, (int64_t[]){0, 2, 1, 3}, 4);
}

/* Attention's of the heads of q, of k and of v, which lie beside each other in qkv. */
static void bound_heads(const cup__gradient_call *own, const cup_tensor *qkv, double *bound)
{
    int64_t heads = own->in[0]->shape[1], groups = own->in[1]->shape[1];
    int64_t all = heads + 2 * groups, steps = qkv->shape[1], width = qkv->shape[2];
    for (int which = 0; which < 3 && qkv->context->error.status == CUP_OK; which++) {
        int64_t count = which ? groups : heads, size = width / all;
        int64_t first = which ? heads + (which - 1) * groups : 0;
        double *part = cup__calloc((size_t)own->in[which]->count + 1, sizeof *part);
        if (part)
            bound_attention(own, which, part);
        for (int64_t k = 0; part && k < own->in[which]->count; k++) {
            int64_t row = k / size / steps, head = row % count + first;
            int64_t to = (row / count * steps + k / size % steps) * width + head * size + k % size;
            bound[to] += part[k];
        }
        cup__free(part);
    }
}

/* As attention's for the same heads; input i is qkv or the bias. */
static void bound_qkv(const cup__gradient_call *g, int i, double *bound)
{
    cup_tensor *qkv = cup_detach(g->in[0]), *in[CUP__DRAWN_INPUTS] = {NULL};
    cup_context *c = qkv->context;
    int64_t heads = *(const int *)attribute_of(g, "heads");
    int64_t groups = *(const int *)attribute_of(g, "kv_heads");
    groups = groups > 0 ? groups : heads;
    int64_t all = heads + 2 * groups;
    _Alignas(16) char attributes[CUP__DRAWN_ATTRIBUTES] = {0};
    cup__gradient_call own = {.row = cup__row_find("attention"), .attributes = attributes,
                              .dtype = g->dtype, .in_count = g->in_count + 2, .in = in};
    take_attributes(g, own.row, attributes);
    in[0] = heads_of(qkv, all, 0, heads);
    in[1] = heads_of(qkv, all, heads, groups);
    in[2] = heads_of(qkv, all, heads + groups, groups);
    for (int k = 1; k < g->in_count; k++)
        in[k + 2] = g->in[k];
    cup_tensor *back = heads_of(cup_detach(g->back[0]), heads, 0, heads);
    own.back = &back;
    if (c->error.status == CUP_OK && i > 0)
        bound_bias(&own, in[i + 2], bound);
    else if (c->error.status == CUP_OK)
        bound_heads(&own, qkv, bound);
    cup__error_clear(&c->error);
}

static void bound_scores(const cup__gradient_call *g, int i, double *bound)
{
    bool of_one = !strcmp(g->row->name, "qkv_attention");
    int tensors = of_one ? 1 : 3;
    if (!g->back[0] || (i >= tensors && i != tensors + CUP__BIAS))
        return;
    if (of_one)
        bound_qkv(g, i, bound);
    else if (i < tensors)
        bound_attention(g, i, bound);
    else
        bound_bias(g, g->in[i], bound);
}

void cup__gradient_cancelling(const cup__gradient_call *g, int i, double *bound)
{
    const char *name = g->row->name;
    const bool *train = attribute_of(g, "train");
    bool norm = attribute_of(g, "eps") && strstr(name, "norm") && (!train || *train);
    bool is_log = !strcmp(name, "log_softmax");
    const cup_tensor *x = g->in[0];
    if (!x || x->count == 0)
        return;
    if (!strcmp(name, "attention") || !strcmp(name, "attention_lse") ||
        !strcmp(name, "qkv_attention"))
        bound_scores(g, i, bound);
    if (!strcmp(name, "cross_entropy") && i == 0)
        bound_loss(g, x, g->in[1], bound);
    if (!strcmp(name, "linear_cross_entropy") && i < 2)
        bound_linear_loss(g, i, bound);
    if (i > (norm && !strncmp(name, "add_", 4)))
        return;
    if (norm)
        bound_norm(g, bound);
    else if (is_log || !strcmp(name, "softmax"))
        bound_softmax(g, is_log, bound);
}
