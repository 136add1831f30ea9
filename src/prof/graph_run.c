/* Runs a random graph, and moves what each op of it rounds. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"
#include "prof/compare.h"
#include "prof/graph_kinds.h"

#define EPS 1e-5 /* of norms */

/* A run under way. */
typedef struct execution {
    const cup__graph *g;
    cup_context *c;
    cup_dtype dtype, hold;
    int noise;
    cup_tensor *value[CUP__GRAPH_NODES], *base[CUP__GRAPH_NODES];
    cup_tensor *probe[CUP__GRAPH_NODES]; /* zeros that are added, for the gradient of the value */
} execution;

/* Numbers of [-1, 1) times `scale`, plus `shift`, rounded to the dtype. */
static cup_tensor *numbers(execution *e, const cup__graph_node *n, uint64_t seed, double scale,
                           double shift, cup_dtype rounded)
{
    cup__shape shape = {.dtype = e->hold, .ndim = n->ndim};
    uint64_t bits, state = seed;
    cup_tensor one = {.data = &bits, .dtype = rounded};
    memcpy(shape.size, n->size, sizeof n->size);
    cup_tensor *t = cup__tensor_make(e->c, &shape, "sample");
    char *values = t ? cup__malloc((size_t)(t->count * cup_dtype_size(t->dtype))) : NULL;
    cup_tensor to = {.data = values, .dtype = e->hold};
    for (int64_t i = 0; values && i < t->count; i++) {
        cup__store(&one, 0, shift + scale * cup__graph_unit(&state));
        cup__store(&to, i, cup__load(&one, 0));
    }
    if (values)
        cup_tensor_write(t, values, (size_t)(t->count * cup_dtype_size(t->dtype)));
    else if (e->c->error.status == CUP_OK)
        cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a graph");
    cup__free(values);
    return t;
}

/* Whether an op takes its gradient from what it has stored, rounded as that is: then the value
 * itself is moved, unseen by the tape. 1 - y^2 of a tanh near 1 is little but that rounding. */
static bool saves_its_result(const cup__graph *g, int node)
{
    int kind = g->node[node].kind;
    const cup__row *row = kind ? cup__row_find(cup__graph_names[kind]) : NULL;
    return row && row->op->saves & CUP__SAVE_OUT(0);
}

/* Moves a value as the rounding of its op would, or what flows back along an edge; the other of
 * both stays, since they round apart: y = v (1 + r), of which only one part is recorded. A leaf is
 * exact, and moves by what f32 can tell apart: an op that rounds each of its steps is right for
 * inputs that far off, and where most of these cancel, as the deviations of nearly equal numbers
 * in a norm or the terms of a mean near 0, no order of its steps is better. */
static cup_tensor *moved(execution *e, int i, int edge, cup_tensor *t)
{
    bool leaf = !e->g->node[i].kind;
    if (!e->noise || !t || (leaf && edge > 0))
        return t;
    double roundings = leaf ? 1 : cup__graph_roundings(e->g, i, e->dtype);
    double inside = fmin(cup__epsilon(e->dtype), cup__epsilon(CUP_F32));
    double scale = roundings / 4 * (leaf ? inside : cup__epsilon(e->dtype));
    cup__graph_node shape = {.ndim = t->ndim};
    memcpy(shape.size, t->shape, (size_t)t->ndim * sizeof *t->shape);
    uint64_t seed = e->g->seed + (uint64_t)(10000 * e->noise + 10 * i + edge) * 0x2545f4914f6cdd1du;
    cup_tensor *r = numbers(e, &shape, seed, scale, 0, CUP_F64);
    bool was = cup_grad_recording(e->c, false);
    cup_tensor *fixed = cup_mul(e->c, t, r);
    if (edge > 0)
        fixed = cup_neg(e->c, fixed);
    else if (!leaf)
        fixed = cup_add(e->c, fixed,
                        numbers(e, &shape, seed + 1, cup__smallest(e->dtype), 0, CUP_F64));
    cup_grad_recording(e->c, was);
    if (edge > 0)
        t = cup_add(e->c, t, cup_mul(e->c, t, r));
    if (edge == 0 && saves_its_result(e->g, i) && t && fixed) {
        for (int64_t k = 0; k < t->count; k++)
            ((double *)t->data)[k] += ((const double *)fixed->data)[k];
        return t;
    }
    return cup_add(e->c, t, fixed);
}

/* Weights are small, so that values keep their size. */
static cup_tensor *make_leaf(execution *e, int i)
{
    const cup__graph_node *n = &e->g->node[i];
    cup__graph_node flat = {.ndim = 1, .size = {n->number}};
    int64_t count = 1;
    for (int d = 0; d < n->ndim; d++)
        count *= n->size[d];
    flat.size[0] += count;
    double scale = i && n->ndim > 1 ? 2 / sqrt((double)n->size[n->ndim - 1]) : 1;
    e->base[i] = cup_require_grad(
        numbers(e, &flat, e->g->seed + (uint64_t)i * 7919, scale, 0, e->dtype));
    cup_tensor *part = cup_slice(e->c, e->base[i], &n->number, 1, &count, 1);
    return cup_reshape(e->c, part, n->ndim, n->size);
}

static cup_tensor *make_elementwise(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    switch (n->kind) {
    case GELU:
        return cup_gelu(e->c, in[0]);
    case SILU:
        return cup_silu(e->c, in[0]);
    case TANH:
        return cup_tanh(e->c, in[0]);
    case SIGMOID:
        return cup_sigmoid(e->c, in[0]);
    case SCALE:
        return cup_scale(e->c, in[0], -0.75);
    case ADD:
        return cup_add(e->c, in[0], in[1]);
    case SUB:
        return cup_sub(e->c, in[0], in[1]);
    default:
        return cup_mul(e->c, in[0], in[1]);
    }
}

/* y with the slopes of x too, whose value is left out. */
static cup_tensor *with_slopes(execution *e, cup_tensor *y, cup_tensor *x)
{
    return cup_add(e->c, y, cup_sub(e->c, x, cup_detach(x)));
}

/* For each element of t up to how far the terms of a sum of n move where its partial sums, which
 * may be as large as the root of n of them, are rounded one after the other. */
static cup_tensor *of_terms(execution *e, int node, int use, cup_tensor *t, double n)
{
    double inside = fmin(cup__epsilon(e->dtype), cup__epsilon(CUP_F32));
    uint64_t number = (uint64_t)(10000 * e->noise + 10 * node + use);
    cup__graph_node shape = {.ndim = t ? t->ndim : 0};
    for (int d = 0; d < shape.ndim; d++)
        shape.size[d] = t->shape[d];
    return numbers(e, &shape, e->g->seed + number * 0xd1342543de82ef95u,
                   fmax(1, sqrt(n)) / 4 * inside, 0, CUP_F64);
}

static cup_tensor *terms_moved(execution *e, int node, int use, cup_tensor *t, double n)
{
    return cup_mul(e->c, cup_detach(t), of_terms(e, node, use, t, n));
}

static cup_tensor *multiply(execution *e, bool linear, cup_tensor *a, cup_tensor *b,
                            cup_tensor *bias)
{
    return linear ? cup_linear(e->c, a, b, bias) : cup_matmul(e->c, a, b, false, false);
}

/* A product. Its sums are rounded, and those in which its factors' gradients are what flows back
 * times the other factor: all of them by the size of their terms, however little these leave. */
static cup_tensor *make_sums(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    int node = (int)(n - e->g->node);
    bool linear = n->kind != MATMUL;
    cup_tensor *a = in[0], *b = in[1], *bias = linear ? in[3] : NULL;
    cup_tensor *y = multiply(e, linear, a, b, bias);
    if (!e->noise || !y)
        return y;
    double k = (double)a->shape[a->ndim - 1], columns = (double)y->shape[y->ndim - 1];
    double rows = linear ? (double)y->count / columns : (double)y->shape[y->ndim - 2];
    cup_tensor *value = multiply(e, linear, terms_moved(e, node, 1, a, k), cup_detach(b), NULL);
    cup_tensor *of_a = multiply(e, linear, a, terms_moved(e, node, 2, b, columns), NULL);
    cup_tensor *of_b = multiply(e, linear, terms_moved(e, node, 3, a, rows), b, NULL);
    if (bias)
        of_b = cup_add(e->c, of_b, cup_mul(e->c, bias, of_terms(e, node, 4, y, rows)));
    return with_slopes(e, with_slopes(e, cup_add(e->c, y, value), of_a), of_b);
}

/* With what a call may store before the activation or the sum, for its gradient or where no kernel
 * does both, moved. */
static cup_tensor *make_in_two(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    cup_tensor *pre = moved(e, (int)(n - e->g->node), -1, make_sums(e, n, in));
    if (n->kind == LINEAR_ADD)
        return cup_add(e->c, pre, in[2]);
    if (n->kind != LINEAR_SWIGLU)
        return n->kind == LINEAR_GELU ? cup_gelu(e->c, pre) : cup_silu(e->c, pre);
    int64_t from[3] = {0};
    cup_tensor *gate = cup_slice(e->c, pre, from, n->ndim, n->size, n->ndim);
    from[n->ndim - 1] = n->size[n->ndim - 1];
    return cup_swiglu(e->c, gate, cup_slice(e->c, pre, from, n->ndim, n->size, n->ndim));
}

static cup_tensor *make_product(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    if (e->noise && n->kind >= LINEAR_GELU && n->kind <= LINEAR_ADD)
        return make_in_two(e, n, in);
    switch (n->kind) {
    case LINEAR_GELU:
        return cup_linear_gelu(e->c, in[0], in[1], in[3]);
    case LINEAR_SILU:
        return cup_linear_silu(e->c, in[0], in[1], in[3]);
    case LINEAR_SWIGLU:
        return cup_linear_swiglu(e->c, in[0], in[1], in[3]);
    case LINEAR_ADD:
        return cup_linear_add(e->c, in[0], in[1], in[2], in[3]);
    default:
        return make_sums(e, n, in);
    }
}

/* Of a row of x: its mean, 0 for one that is not centred, and what its elements are divided by. */
typedef struct statistics {
    double mean, size;
} statistics;

static statistics statistics_of(const cup_tensor *x, int64_t row, int64_t width, bool centred)
{
    double mean = 0, squares = 0;
    for (int64_t k = 0; k < width && centred; k++)
        mean += cup__load(x, cup__offset_of(x, row * width + k)) / (double)width;
    for (int64_t k = 0; k < width; k++) {
        double v = cup__load(x, cup__offset_of(x, row * width + k)) - mean;
        squares += v * v / (double)width;
    }
    return (statistics){mean, sqrt(squares + EPS)};
}

static double gamma_at(const cup_tensor *gamma, int64_t k)
{
    return gamma ? cup__load(gamma, cup__offset_of(gamma, k)) : 1;
}

/* Numbers as large as what an op rounds each of its terms by. */
static cup_tensor *roundings(execution *e, const cup__graph_node *n, int use)
{
    int node = (int)(n - e->g->node);
    double inside = fmin(cup__epsilon(e->dtype), cup__epsilon(CUP_F32));
    uint64_t number = (uint64_t)(10000 * e->noise + 10 * node + use);
    return numbers(e, n, e->g->seed + number * 0x2545f4914f6cdd1du,
                   cup__graph_roundings(e->g, node, e->dtype) / 4 * inside, 0, CUP_F64);
}

/* The mean is stored in f32 for backward, so that all deviations of a row are off by one number:
 * its sum with what flows back does not cancel where theirs do. */
static cup_tensor *with_moved_mean(execution *e, const cup__graph_node *n, cup_tensor *const *in,
                                   cup_tensor *y)
{
    int64_t axis = -1, width = n->size[n->ndim - 1];
    cup_tensor *off = roundings(e, n, 8), *deviations = numbers(e, n, 0, 0, 0, CUP_F64);
    cup_tensor *weighed = numbers(e, n, 0, 0, 0, CUP_F64);
    if (!off || !deviations || !weighed)
        return NULL;
    double *to = off->data, *d = deviations->data, *w = weighed->data;
    for (int64_t row = 0; row < off->count / width; row++) {
        statistics s = statistics_of(in[0], row, width, true);
        double by = to[row * width] * fabs(s.mean) / s.size;
        for (int64_t k = 0; k < width; k++) {
            int64_t at = row * width + k;
            d[at] = (cup__load(in[0], cup__offset_of(in[0], at)) - s.mean) / s.size;
            to[at] = by;
            w[at] = by * gamma_at(in[1], k) / s.size;
        }
    }
    bool was = cup_grad_recording(e->c, false);
    cup_tensor *both = cup_mul(e->c, weighed, deviations);
    cup_grad_recording(e->c, was);
    y = in[1] ? with_slopes(e, y, cup_mul(e->c, in[1], off)) : y;
    y = with_slopes(e, y, cup_mul(e->c, cup_mean(e->c, in[0], &axis, 1, true), both));
    cup_tensor *along = cup_mean(e->c, cup_mul(e->c, in[0], deviations), &axis, 1, true);
    return with_slopes(e, y, cup_mul(e->c, along, weighed));
}

/* What a norm rounds inside its gradients. Those of gamma and beta are sums over rows, of terms
 * that each are rounded. That of x has a term that is what flows back times gamma over the size of
 * the row, of which others leave little where few values make up most of that size. */
static cup_tensor *with_moved_slopes(execution *e, const cup__graph_node *n, cup_tensor *const *in,
                                     cup_tensor *y)
{
    int64_t width = n->size[n->ndim - 1];
    bool centred = n->kind == LAYERNORM;
    if (!e->noise || !y)
        return y;
    for (int k = 1; k < 3 && in[k]; k++)
        y = with_slopes(e, y, cup_mul(e->c, in[k], roundings(e, n, 4 + k)));
    if (centred)
        y = with_moved_mean(e, n, in, y);
    cup_tensor *r = roundings(e, n, 7);
    for (int64_t row = 0; r && row < r->count / width; row++) {
        double size = statistics_of(in[0], row, width, centred).size;
        for (int64_t k = 0; k < width; k++)
            ((double *)r->data)[row * width + k] *= gamma_at(in[1], k) / size;
    }
    return with_slopes(e, y, cup_mul(e->c, in[0], r));
}

/* A sum or a mean along rows, whose terms are rounded as those of products. */
static cup_tensor *make_fold(execution *e, const cup__graph_node *n, cup_tensor *x)
{
    int64_t axis = -1, width = x ? x->shape[x->ndim - 1] : 1;
    cup_tensor *y = n->kind == SUM ? cup_sum(e->c, x, &axis, 1, true)
                                   : cup_mean(e->c, x, &axis, 1, true);
    if (!e->noise || !y)
        return y;
    cup_tensor *by = terms_moved(e, (int)(n - e->g->node), 1, x, (double)width);
    by = cup_sum(e->c, by, &axis, 1, true);
    return cup_add(e->c, y, n->kind == SUM ? by : cup_scale(e->c, by, 1 / (double)width));
}

static cup_tensor *make_rows(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    switch (n->kind) {
    case LAYERNORM:
        return with_moved_slopes(e, n, in, cup_layernorm(e->c, in[0], in[1], in[2], EPS));
    case RMSNORM:
        return with_moved_slopes(e, n, in, cup_rmsnorm(e->c, in[0], in[1], EPS));
    case SUM:
    case MEAN:
        return make_fold(e, n, in[0]);
    case SOFTMAX:
        return cup_softmax(e->c, in[0], -1);
    default:
        return cup_log_softmax(e->c, in[0], -1);
    }
}

static cup_tensor *make_view(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    int64_t starts[3] = {0}, axes[3] = {0, 1, 2};
    switch (n->kind) {
    case SLICE:
        starts[n->ndim - 1] = n->number;
        return cup_slice(e->c, in[0], starts, n->ndim, n->size, n->ndim);
    case TRANSPOSE:
        axes[n->ndim - 1] = n->ndim - 2;
        axes[n->ndim - 2] = n->ndim - 1;
        return cup_permute(e->c, in[0], axes, n->ndim);
    case RESHAPE:
        return cup_reshape(e->c, in[0], n->ndim, n->size);
    default:
        return cup_concat(e->c, in, 2, -1);
    }
}

/* What is broadcast has its gradient rounded before that is summed, element by element. */
static cup_tensor *spread(execution *e, const cup__graph_node *n, cup_tensor *in)
{
    if (!e->noise || !in || n->kind < ADD || n->kind > MUL)
        return in;
    return cup_add(e->c, in, numbers(e, n, 0, 0, 0, CUP_F64));
}

static cup_tensor *make(execution *e, int i)
{
    const cup__graph_node *n = &e->g->node[i];
    cup_tensor *in[4] = {NULL};
    for (int k = 0; k < 4; k++)
        in[k] = n->in[k] >= 0 && n->kind ? e->value[n->in[k]] : NULL;
    if (n->gone)
        return in[0];
    for (int k = 0; k < 4; k++)
        in[k] = moved(e, i, k + 1, spread(e, n, in[k]));
    cup_tensor *t = n->kind == LEAF        ? make_leaf(e, i)
                    : n->kind <= MUL       ? make_elementwise(e, n, in)
                    : n->kind <= MATMUL    ? make_product(e, n, in)
                    : n->kind < SLICE      ? make_rows(e, n, in)
                                           : make_view(e, n, in);
    return moved(e, i, 0, t);
}

static bool is_in_double(const execution *e)
{
    return !e->noise && e->hold == CUP_F64 && e->dtype != CUP_F64;
}

static cup_tensor *probed(execution *e, int i, cup_tensor *t)
{
    if (!t || !is_in_double(e) || !e->g->node[i].kind || e->g->node[i].gone)
        return t;
    e->probe[i] = cup_require_grad(numbers(e, &e->g->node[i], 0, 0, 0, CUP_F64));
    return cup_add(e->c, t, e->probe[i]);
}

static bool is_too_large(const cup_tensor *t, cup_dtype dtype)
{
    for (int64_t i = 0; t && i < t->count; i++) {
        double size = fabs(cup__load(t, cup__offset_of(t, i)));
        if (isfinite(size) && size >= cup__most(dtype))
            return true;
    }
    return false;
}

static bool overflows(const execution *e)
{
    for (int i = 0; is_in_double(e) && i < e->g->count; i++)
        if (is_too_large(e->value[i], e->dtype) ||
            (e->probe[i] && is_too_large(cup_grad(e->probe[i]), e->dtype)))
            return true;
    return false;
}

cup_status cup__graph_execute(const cup__graph *g, cup_context *c, cup_dtype dtype, cup_dtype hold,
                              int noise, cup__graph_run *out)
{
    execution e = {.g = g, .c = c, .dtype = dtype, .hold = hold, .noise = noise};
    cup_tensor *loss = NULL;
    *out = (cup__graph_run){{NULL}, {NULL}, false};
    for (int i = 0; i < g->count; i++) {
        if (!g->node[i].gone && !cup__graph_is_needed(g, i))
            continue;
        e.value[i] = probed(&e, i, make(&e, i));
        if (!e.value[i])
            return c->error.status;
        if (!cup__graph_is_end(g, i))
            continue;
        out->value[i] = e.value[i];
        cup_tensor *d = numbers(&e, &g->node[i], g->seed ^ (uint64_t)(i + 1) * 104729, 1, 0, dtype);
        cup_tensor *part = cup_sum(c, cup_mul(c, e.value[i], d), NULL, 0, false);
        loss = loss ? cup_add(c, loss, part) : part;
    }
    if (!loss || cup_backward(c, loss) != CUP_OK)
        return c->error.status;
    for (int i = 0; i < g->count; i++)
        out->gradient[i] = e.base[i] ? cup_grad(e.base[i]) : NULL;
    out->overflows = overflows(&e);
    return c->device->calls->synchronize(c->device);
}
