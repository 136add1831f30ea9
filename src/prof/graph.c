#include "prof/graph_kinds.h"

#include <math.h>
#include <string.h>

#include "dispatch/op.h"

const char *const cup__graph_names[KINDS] = {
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

double cup__graph_unit(uint64_t *state)
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

/* Whether a value is as it was drawn, by no op that rounds. */
static bool is_exact(const cup__graph *g, int node)
{
    const cup__graph_node *n = &g->node[node];
    return n->kind == LEAF || (n->kind >= SLICE && is_exact(g, n->in[0]) &&
                               (n->kind != CONCAT || is_exact(g, n->in[1])));
}

/* An op on a node that has at least two dimensions. */
static void draw_op(cup__graph *g, uint64_t *state)
{
    int a = g->count - 1 - (int)below(state, g->count < 6 ? g->count : 6);
    while (g->node[a].ndim < 2)
        a = a ? a - 1 : g->count - 1;
    cup__graph_node n = like(&g->node[a], 1 + (int)below(state, KINDS - 1));
    n.in[0] = a;
    /* Two values that are nearly equal may each be rounded by more than they are apart. */
    if (n.kind == LAYERNORM && last(&n) == 2 && !is_exact(g, a))
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
    bool narrow = last(&n) < (n.kind == LAYERNORM ? 3 : 2); /* has no weights */
    if ((n.kind == LAYERNORM || n.kind == RMSNORM) && !narrow)
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

bool cup__graph_is_needed(const cup__graph *g, int node)
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
        if (!cup__graph_is_needed(g, i))
            continue;
        cup__text_add(out, "%s%d = %s", first ? "" : "; ", i, cup__graph_names[n->kind]);
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
    const cup__row *row = cup__row_find(cup__graph_names[n->kind]);
    for (int i = 0; i < n->ndim - 1; i++)
        rows *= (double)n->size[i];
    if (cup_dtype_size(dtype) < 4)
        return 4; /* the inside is f32 */
    return fmax(fmax(4, row->op->tolerance), sqrt(fmax(rows, most)));
}
