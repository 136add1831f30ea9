#include "prof/graph.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"
#include "prof/compare.h"

typedef enum kind {
    LEAF,
    GELU, SILU, TANH, SIGMOID, SCALE,
    ADD, SUB, MUL,
    LINEAR, LINEAR_GELU, LINEAR_SILU, LINEAR_SWIGLU, LINEAR_ADD,
    MATMUL,
    LAYERNORM, RMSNORM,
    SUM, MEAN,
    SOFTMAX, LOG_SOFTMAX,
    SLICE, TRANSPOSE, RESHAPE, CONCAT,
    KINDS
} kind;

/* By kind: the op's name. */
static const char *const names[KINDS] = {
    "leaf", "gelu", "silu", "tanh", "sigmoid", "scale", "add", "sub", "mul", "linear",
    "linear_gelu", "linear_silu", "linear_swiglu", "linear_add", "matmul", "layernorm", "rmsnorm",
    "sum", "mean", "softmax", "log_softmax", "slice", "permute", "reshape", "concat"};

static uint64_t word(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t below(uint64_t *state, int64_t most)
{
    return (int64_t)(word(state) % (uint64_t)most);
}

static double unit(uint64_t *state)
{
    return (double)(word(state) >> 11) * 0x1p-52 - 1;
}

static const int64_t widths[] = {1, 2, 3, 5, 8, 16, 17, 20, 24, 32, 33, 64, 65, 96, 130, 264};
static const int64_t lengths[] = {1, 2, 3, 5, 7, 16, 20, 33};

static int64_t width(uint64_t *state)
{
    return widths[below(state, sizeof widths / sizeof *widths)];
}

static int64_t last(const cup__graph_node *n)
{
    return n->size[n->ndim - 1];
}

static int add_node(cup__graph *g, cup__graph_node node)
{
    g->node[g->count] = node;
    return g->count++;
}

static cup__graph_node like(const cup__graph_node *a, int which)
{
    cup__graph_node n = *a;
    n.kind = which;
    n.gone = false;
    n.number = 0;
    for (int i = 0; i < 4; i++)
        n.in[i] = -1;
    return n;
}

/* A new leaf, half of the time off where its memory begins; or one of these sizes that is there. */
static int leaf(cup__graph *g, uint64_t *state, cup__graph_node shape)
{
    for (int i = 0; i < g->count; i++)
        if (g->node[i].kind == LEAF && g->node[i].ndim == shape.ndim &&
            !memcmp(g->node[i].size, shape.size, (size_t)shape.ndim * sizeof *shape.size) &&
            below(state, 3) == 0)
            return i;
    shape = like(&shape, LEAF);
    shape.number = below(state, 2) ? below(state, 9) : 0;
    return add_node(g, shape);
}

static int vector(cup__graph *g, uint64_t *state, int64_t size, bool optional)
{
    if (optional && below(state, 3) == 0)
        return -1;
    return leaf(g, state, (cup__graph_node){.ndim = 1, .size = {size}});
}

/* Another value of these sizes, or a leaf. */
static int same_sizes(cup__graph *g, uint64_t *state, const cup__graph_node *shape)
{
    for (int i = g->count - 1; i >= 0; i--)
        if (g->node[i].ndim == shape->ndim && below(state, 2) &&
            !memcmp(g->node[i].size, shape->size, (size_t)shape->ndim * sizeof *shape->size))
            return i;
    return leaf(g, state, *shape);
}

static void draw_second(cup__graph *g, uint64_t *state, cup__graph_node *n)
{
    cup__graph_node other = *n;
    int64_t way = below(state, 4);
    if (way == 0)
        other = (cup__graph_node){.ndim = 1, .size = {last(n)}};
    if (way == 1)
        other.size[other.ndim - 1] = 1;
    n->in[1] = same_sizes(g, state, &other);
}

static void draw_linear(cup__graph *g, uint64_t *state, cup__graph_node *n)
{
    int64_t k = last(n), to = width(state), rows = n->kind == LINEAR_SWIGLU ? 2 * to : to;
    n->size[n->ndim - 1] = to;
    n->in[1] = leaf(g, state, (cup__graph_node){.ndim = 2, .size = {rows, k}});
    if (n->kind == LINEAR_ADD)
        n->in[2] = same_sizes(g, state, n);
    n->in[3] = vector(g, state, rows, true);
}

static void draw_shape(cup__graph *g, uint64_t *state, cup__graph_node *n)
{
    int64_t *end = &n->size[n->ndim - 1];
    cup__graph_node other = *n;
    switch (n->kind) {
    case SLICE:
        n->number = below(state, *end);
        *end = 1 + below(state, *end - n->number);
        break;
    case TRANSPOSE:
        end[0] = other.size[n->ndim - 2];
        end[-1] = other.size[n->ndim - 1];
        break;
    case RESHAPE:
        n->ndim = n->ndim == 3 ? 2 : 3;
        n->size[0] = n->ndim == 2 ? other.size[0] * other.size[1] : other.size[0];
        n->size[1] = n->ndim == 2 ? other.size[2] : 1;
        n->size[2] = other.size[1];
        break;
    default: /* CONCAT */
        other.size[n->ndim - 1] = width(state);
        n->in[1] = same_sizes(g, state, &other);
        *end += last(&other);
    }
}

/* An op on a node that has at least two dimensions. */
static void draw_op(cup__graph *g, uint64_t *state)
{
    int a = g->count - 1 - (int)below(state, g->count < 6 ? g->count : 6);
    while (g->node[a].ndim < 2)
        a = a ? a - 1 : g->count - 1;
    cup__graph_node n = like(&g->node[a], 1 + (int)below(state, KINDS - 1));
    n.in[0] = a;
    /* The gradient of one value that is divided by its own size, or of two about their mean, is
     * made of rounding alone. */
    if ((n.kind == LAYERNORM && last(&n) < 3) || (n.kind == RMSNORM && last(&n) < 2))
        n.kind = GELU;
    if (n.kind >= ADD && n.kind <= MUL)
        draw_second(g, state, &n);
    if (n.kind >= LINEAR && n.kind <= LINEAR_ADD)
        draw_linear(g, state, &n);
    if (n.kind == MATMUL) {
        cup__graph_node b = n;
        b.size[b.ndim - 2] = last(&n);
        b.size[b.ndim - 1] = n.size[n.ndim - 1] = width(state);
        n.in[1] = same_sizes(g, state, &b);
    }
    if (n.kind == LAYERNORM || n.kind == RMSNORM)
        n.in[1] = vector(g, state, last(&n), true);
    if (n.kind == LAYERNORM && n.in[1] >= 0)
        n.in[2] = vector(g, state, last(&n), true);
    if (n.kind == SUM || n.kind == MEAN)
        n.size[n.ndim - 1] = 1;
    if (n.kind >= SLICE)
        draw_shape(g, state, &n);
    add_node(g, n);
}

void cup__graph_draw(uint64_t seed, int64_t number, cup__graph *g)
{
    uint64_t state = seed ^ (uint64_t)(number + 1) * 0xd1342543de82ef95u;
    *g = (cup__graph){.seed = word(&state)};
    cup__graph_node x = {.ndim = 2 + (int)below(&state, 2)};
    for (int i = 0; i < x.ndim; i++)
        x.size[i] = lengths[below(&state, i ? 8 : 4)];
    x.size[x.ndim - 1] = width(&state);
    leaf(g, &state, x);
    for (int64_t ops = 3 + below(&state, 10); ops > 0; ops--)
        draw_op(g, &state);
}

/* The node whose value stands for this one's. */
static int stands_for(const cup__graph *g, int i)
{
    while (i >= 0 && g->node[i].gone)
        i = g->node[i].in[0];
    return i;
}

bool cup__graph_is_end(const cup__graph *g, int node)
{
    if (g->node[node].kind == LEAF || g->node[node].gone)
        return false;
    for (int i = node + 1; i < g->count; i++)
        for (int k = 0; k < 4 && !g->node[i].gone; k++)
            if (stands_for(g, g->node[i].in[k]) == node)
                return false;
    return true;
}

bool cup__graph_can_drop(const cup__graph *g, int node)
{
    const cup__graph_node *n = &g->node[node], *a = n->kind ? &g->node[n->in[0]] : NULL;
    if (!a || n->gone)
        return false;
    return cup__graph_is_end(g, node) ||
           (n->ndim == a->ndim && !memcmp(n->size, a->size, (size_t)n->ndim * sizeof *n->size));
}

static bool is_needed(const cup__graph *g, int node)
{
    if (g->node[node].gone)
        return false;
    for (int i = node + 1; i < g->count; i++)
        for (int k = 0; k < 4 && !g->node[i].gone; k++)
            if (stands_for(g, g->node[i].in[k]) == node)
                return true;
    return g->node[node].kind != LEAF;
}

static void add_sizes(cup__text *out, const cup__graph_node *n)
{
    for (int i = 0; i < n->ndim; i++)
        cup__text_add(out, "%s%lld", i ? "," : " [", (long long)n->size[i]);
    cup__text_add(out, "]");
    if (n->number)
        cup__text_add(out, n->kind ? " from %lld" : " at %lld", (long long)n->number);
}

void cup__graph_text(const cup__graph *g, cup__text *out)
{
    bool first = true;
    for (int i = 0; i < g->count; i++) {
        const cup__graph_node *n = &g->node[i];
        if (!is_needed(g, i))
            continue;
        cup__text_add(out, "%s%d = %s", first ? "" : "; ", i, names[n->kind]);
        first = false;
        for (int k = 0; k < 4 && n->kind; k++)
            if (n->in[k] >= 0)
                cup__text_add(out, "%s%d", k ? ", " : "(", stands_for(g, n->in[k]));
        cup__text_add(out, n->kind ? ")" : "");
        add_sizes(out, n);
    }
}

double cup__graph_roundings(const cup__graph *g, int node, cup_dtype dtype)
{
    const cup__graph_node *n = &g->node[node];
    double rows = 1, most = fmax((double)last(n), (double)last(&g->node[n->in[0]]));
    const cup__row *row = cup__row_find(names[n->kind]);
    for (int i = 0; i < n->ndim - 1; i++)
        rows *= (double)n->size[i];
    if (cup_dtype_size(dtype) < 4)
        return 4; /* the inside is f32 */
    return fmax(fmax(4, row->op->tolerance), sqrt(fmax(rows, most)));
}

/* A run under way. */
typedef struct execution {
    const cup__graph *g;
    cup_context *c;
    cup_dtype dtype, hold;
    int noise;
    cup_tensor *value[CUP__GRAPH_NODES], *base[CUP__GRAPH_NODES];
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
        cup__store(&one, 0, shift + scale * unit(&state));
        cup__store(&to, i, cup__load(&one, 0));
    }
    if (values)
        cup_tensor_write(t, values, (size_t)(t->count * cup_dtype_size(t->dtype)));
    else if (e->c->error.status == CUP_OK)
        cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a graph");
    cup__free(values);
    return t;
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
    double scale = i && n->ndim > 1 ? 2 / sqrt((double)last(n)) : 1;
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

static cup_tensor *make_product(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    switch (n->kind) {
    case LINEAR:
        return cup_linear(e->c, in[0], in[1], in[3]);
    case LINEAR_GELU:
        return cup_linear_gelu(e->c, in[0], in[1], in[3]);
    case LINEAR_SILU:
        return cup_linear_silu(e->c, in[0], in[1], in[3]);
    case LINEAR_SWIGLU:
        return cup_linear_swiglu(e->c, in[0], in[1], in[3]);
    case LINEAR_ADD:
        return cup_linear_add(e->c, in[0], in[1], in[2], in[3]);
    default:
        return cup_matmul(e->c, in[0], in[1], false, false);
    }
}

static cup_tensor *make_rows(execution *e, const cup__graph_node *n, cup_tensor *const *in)
{
    int64_t axis = -1;
    switch (n->kind) {
    case LAYERNORM:
        return cup_layernorm(e->c, in[0], in[1], in[2], 1e-5);
    case RMSNORM:
        return cup_rmsnorm(e->c, in[0], in[1], 1e-5);
    case SUM:
        return cup_sum(e->c, in[0], &axis, 1, true);
    case MEAN:
        return cup_mean(e->c, in[0], &axis, 1, true);
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

static cup_tensor *make(execution *e, int i)
{
    const cup__graph_node *n = &e->g->node[i];
    cup_tensor *in[4] = {NULL};
    for (int k = 0; k < 4; k++)
        in[k] = n->in[k] >= 0 && n->kind ? e->value[n->in[k]] : NULL;
    if (n->gone)
        return in[0];
    for (int k = 0; k < 4; k++)
        in[k] = moved(e, i, k + 1, in[k]);
    cup_tensor *t = n->kind == LEAF        ? make_leaf(e, i)
                    : n->kind <= MUL       ? make_elementwise(e, n, in)
                    : n->kind <= MATMUL    ? make_product(e, n, in)
                    : n->kind < SLICE      ? make_rows(e, n, in)
                                           : make_view(e, n, in);
    return moved(e, i, 0, t);
}

cup_status cup__graph_execute(const cup__graph *g, cup_context *c, cup_dtype dtype, cup_dtype hold,
                              int noise, cup__graph_run *out)
{
    execution e = {.g = g, .c = c, .dtype = dtype, .hold = hold, .noise = noise};
    cup_tensor *loss = NULL;
    *out = (cup__graph_run){{NULL}, {NULL}};
    for (int i = 0; i < g->count; i++) {
        if (!g->node[i].gone && !is_needed(g, i))
            continue;
        e.value[i] = make(&e, i);
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
    return c->device->calls->synchronize(c->device);
}
