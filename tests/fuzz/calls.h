/* The plain model that calls.c holds the library to: blocks of memory, tensors that are views of
 * them, and for each recorded result how much each of its elements changes with those it was made
 * of. All numbers are whole, so that most are exact. */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include "fuzz.h"

#include <math.h>

#include "cupola/grad.h"

#define MOST 64 /* elements of a tensor */
#define THINGS 400
#define LARGE 1e4 /* what goes on being computed with */

typedef struct block {
    void *before;
    double data[MOST];
} block;

/* What a result is made of: of each element what is added up, and how it changes with an input. */
typedef struct part {
    int to, in, at;
    double slope;
} part;

typedef struct rule {
    int64_t count;
    int part_count;
    double value[MOST];
    part parts[2 * MOST * 8];
} rule;

/* A parameter, or a recorded result. */
typedef struct node {
    void *before;
    struct node *in[2];
    int64_t count;
    bool parameter, retained, reached, has_sum;
    double way[MOST], way_size[MOST]; /* on its way in backward, and the sum of the sizes in it */
    double sum[MOST], sum_size[MOST]; /* what cup_grad is */
    int part_count;
    part parts[];
} node;

typedef struct thing {
    cup_tensor *t; /* NULL: it ended */
    int ndim;
    int64_t shape[3], stride[3], offset;
    block *block;
    node *node;          /* NULL: it leads to no parameter */
    unsigned generation; /* in which a result was recorded */
    int scope;           /* -1: kept */
} thing;

typedef struct game {
    const uint8_t *at, *end;
    cup_context *c;
    bool fails, failing; /* memory runs out in some calls; in this one */
    bool recording, keeps;
    bool without_grad[8], recorded[8]; /* a scope; whether there was recording outside of it */
    int depth, unopened;
    unsigned generation;
    void *made; /* blocks and nodes, a list */
    node *order[THINGS]; /* as they were recorded */
    int order_count;
    int count;
    thing things[THINGS];
} game;

static unsigned draw(game *g, unsigned below)
{
    return g->at < g->end ? *g->at++ % below : 0;
}

static void *make(game *g, size_t bytes)
{
    void *made = calloc(1, bytes);
    MUST(made != NULL);
    *(void **)made = g->made;
    g->made = made;
    return made;
}

static int64_t count_of(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    return count;
}

static int draw_shape(game *g, int64_t *shape)
{
    static const int64_t sizes[] = {2, 1, 3, 2, 4, 1, 2, 0, 3};
    int ndim = (int)draw(g, 4);
    for (int i = 0; i < ndim; i++)
        shape[i] = sizes[draw(g, 9)];
    return ndim;
}

/* A call that has no reason to fail but memory. */
static bool worked(game *g, bool ok)
{
    MUST(ok == (cup_error(g->c) == CUP_OK));
    if (ok)
        return true;
    if (!g->failing || cup_error(g->c) != CUP_MEMORY)
        fprintf(stderr, "%s\n", cup_error_text(g->c));
    MUST(g->failing && cup_error(g->c) == CUP_MEMORY);
    cup_error_clear(g->c);
    return false;
}

/* A call that may be refused. */
static bool allowed(game *g, bool ok)
{
    cup_status status = cup_error(g->c);
    MUST(ok == (status == CUP_OK));
    MUST(ok || strlen(cup_error_text(g->c)) > 12);
    MUST(status != CUP_INTERNAL && (status != CUP_MEMORY || g->failing));
    cup_error_clear(g->c);
    return ok;
}

static int64_t address_of(const thing *x, int64_t index)
{
    int64_t at = x->offset;
    for (int i = x->ndim - 1; i >= 0; i--) {
        at += index % x->shape[i] * x->stride[i];
        index /= x->shape[i];
    }
    return at;
}

static double value_at(const thing *x, int64_t index)
{
    return x->block->data[address_of(x, index)];
}

static bool is_large(const thing *x)
{
    for (int64_t i = 0, n = count_of(x->ndim, x->shape); i < n; i++)
        if (fabs(value_at(x, i)) > LARGE)
            return true;
    return false;
}

static node *node_of(const game *g, const thing *x)
{
    bool there = x->node && (x->node->parameter || x->generation == g->generation);
    return there ? x->node : NULL;
}

/* One that is still there, most often of those that were made last; of `ndim` dimensions, unless
 * that is -1, and recorded, if asked. */
static thing *pick_of(game *g, int ndim, bool recorded)
{
    int among = g->count > 8 && draw(g, 3) ? 8 : g->count;
    int from = among ? g->count - 1 - (int)draw(g, 256) % among : 0;
    for (int k = 0; k < g->count; k++) {
        thing *x = &g->things[(from + g->count - k) % g->count];
        if (x->t && (ndim < 0 || x->ndim == ndim) &&
            (!recorded || node_of(g, x)) && !is_large(x))
            return x;
    }
    return NULL;
}

static thing *pick(game *g)
{
    return pick_of(g, -1, false);
}

static thing *pick_matrix(game *g)
{
    return pick_of(g, 2, false);
}

/* The shape that two broadcast to; -1: none. */
static int broadcast_shape(const thing *a, const thing *b, int64_t *shape)
{
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 1; i <= ndim; i++) {
        int64_t m = i <= a->ndim ? a->shape[a->ndim - i] : 1;
        int64_t n = i <= b->ndim ? b->shape[b->ndim - i] : 1;
        if (m != n && m != 1 && n != 1)
            return -1;
        shape[ndim - i] = m == 1 ? n : m;
    }
    return ndim;
}

/* The index in x of an element of a shape that x broadcasts to. */
static int64_t place_in(const thing *x, int ndim, const int64_t *shape, int64_t index)
{
    int64_t at = 0, step = 1;
    for (int i = 1; i <= x->ndim; i++) {
        int64_t size = x->shape[x->ndim - i];
        at += size == 1 ? 0 : index % shape[ndim - i] * step;
        step *= size;
        index /= shape[ndim - i];
    }
    return at;
}

static void rule_begin(rule *r, int64_t count)
{
    memset(r, 0, sizeof *r);
    r->count = count;
}

/* Element `to` has `value` more, and changes with element `at` of input `in`. */
static void rule_add(rule *r, int64_t to, int in, int64_t at, double slope, double value)
{
    MUST(r->part_count < (int)(sizeof r->parts / sizeof *r->parts));
    r->parts[r->part_count++] = (part){(int)to, in, (int)at, slope};
    r->value[to] += value;
}

/* Records a result, where one of its inputs leads to a parameter. */
static void record(game *g, thing *y, const rule *r, node *a, node *b)
{
    if (!g->recording || (!a && !b))
        return;
    size_t bytes = (size_t)r->part_count * sizeof *r->parts;
    node *made = make(g, sizeof *made + bytes);
    made->in[0] = a;
    made->in[1] = b;
    made->count = count_of(y->ndim, y->shape);
    made->part_count = r->part_count;
    memcpy(made->parts, r->parts, bytes);
    y->node = made;
    y->generation = g->generation;
    MUST(g->order_count < THINGS);
    g->order[g->order_count++] = made;
}

static thing *add_thing(game *g, cup_tensor *t, int ndim, const int64_t *shape)
{
    MUST(g->count < THINGS && cup_tensor_ndim(t) == ndim);
    thing *x = &g->things[g->count++];
    *x = (thing){.t = t, .ndim = ndim, .scope = g->depth};
    memcpy(x->shape, shape, (size_t)ndim * sizeof *shape);
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        MUST(cup_tensor_size(t, i) == shape[i]);
        x->stride[i] = step;
        step *= shape[i];
    }
    return x;
}

static thing *add_fresh(game *g, cup_tensor *t, int ndim, const int64_t *shape, const double *data)
{
    thing *x = add_thing(g, t, ndim, shape);
    x->block = make(g, sizeof *x->block);
    memcpy(x->block->data, data, (size_t)count_of(ndim, shape) * sizeof *data);
    return x;
}

static void add_result(game *g, cup_tensor *t, int ndim, const int64_t *shape, const rule *r,
                       thing *const *in, int in_count)
{
    node *a = node_of(g, in[0]), *b = in_count > 1 ? node_of(g, in[1]) : NULL;
    record(g, add_fresh(g, t, ndim, shape, r->value), r, a, b);
}

/* A view: dimension i of it goes over dimension over[i] of x, or repeats where that is -1, and
 * begins at starts. */
static void add_view(game *g, const thing *x, cup_tensor *t, int ndim, const int64_t *shape,
                     const int *over, const int64_t *starts)
{
    thing flat = *x; /* the same places in row-major order */
    thing *y = add_thing(g, t, ndim, shape);
    int64_t step = 1, count = count_of(ndim, shape);
    for (int i = x->ndim - 1; i >= 0; i--) {
        flat.stride[i] = step;
        step *= x->shape[i];
    }
    thing way = *y;
    way.offset = 0;
    y->block = x->block;
    y->offset = x->offset;
    for (int i = 0; starts && count && i < x->ndim; i++) {
        y->offset += starts[i] * x->stride[i];
        way.offset += starts[i] * flat.stride[i];
    }
    for (int i = 0; i < ndim; i++) {
        y->stride[i] = over[i] < 0 ? 0 : x->stride[over[i]];
        way.stride[i] = over[i] < 0 ? 0 : flat.stride[over[i]];
    }
    rule r;
    rule_begin(&r, count);
    for (int64_t i = 0; i < count; i++)
        rule_add(&r, i, 0, address_of(&way, i), 1, 0);
    record(g, y, &r, node_of(g, x), NULL);
}

/* The elements of y become these. */
static void change(thing *y, const double *data)
{
    for (int64_t i = 0, n = count_of(y->ndim, y->shape); i < n; i++)
        y->block->data[address_of(y, i)] = data[i];
}

/* Adds up, from the last recorded on, what is on its way. */
static void go_back(game *g)
{
    for (int i = g->order_count; i-- > 0;) {
        node *n = g->order[i];
        for (int k = 0; k < 2; k++)
            if (n->in[k] && n->reached)
                n->in[k]->reached = true;
        for (int k = 0; k < n->part_count; k++) {
            const part *p = &n->parts[k];
            node *in = n->in[p->in];
            if (in) {
                in->way[p->at] += p->slope * n->way[p->to];
                in->way_size[p->at] += fabs(p->slope) * n->way_size[p->to];
            }
        }
    }
}

static void forget_way(node *n)
{
    memset(n->way, 0, sizeof n->way);
    memset(n->way_size, 0, sizeof n->way_size);
    n->reached = false;
}

static void forget_ways(game *g)
{
    for (int i = 0; i < g->order_count; i++)
        forget_way(g->order[i]);
    for (int i = 0; i < g->count; i++)
        if (g->things[i].node)
            forget_way(g->things[i].node);
}

static void clear_sum(node *n)
{
    memset(n->sum, 0, sizeof n->sum);
    memset(n->sum_size, 0, sizeof n->sum_size);
    n->has_sum = false;
}

/* Behind a backward that was refused gradients may be half of it. */
static void forget_sums(game *g)
{
    for (int i = 0; i < g->count; i++)
        if (g->things[i].node) {
            clear_sum(g->things[i].node);
            if (g->things[i].t)
                cup_grad_clear(g->things[i].t);
        }
}

static void send_back(node *n, const double *gradient)
{
    if (n)
        n->reached = true;
    for (int64_t i = 0; n && i < n->count; i++) {
        n->way[i] += gradient ? gradient[i] : 1;
        n->way_size[i] += gradient ? fabs(gradient[i]) : 1;
    }
}

static void drop_tape(game *g)
{
    g->generation++;
    g->order_count = 0;
}

static bool is_near(double a, double b, double size)
{
    return fabs(a - b) <= 1e-11 * size || (!isfinite(b) && !isfinite(a)) || size > 1e290;
}

/* Holds a tensor to what its elements should be. */
static void must_be(cup_tensor *t, int64_t count, const double *want, const double *size)
{
    double is[MOST];
    MUST(cup_tensor_count(t) == count);
    MUST(cup_tensor_read(t, is, (size_t)count * sizeof *is) == CUP_OK);
    for (int64_t i = 0; i < count; i++) {
        double about = size ? size[i] : fabs(want[i]);
        if (!is_near(is[i], want[i], about))
            fprintf(stderr, "element %d is %.17g and should be %.17g\n", (int)i, is[i], want[i]);
        MUST(is_near(is[i], want[i], about));
    }
}

static void check_thing(const thing *x)
{
    double want[MOST];
    int64_t count = count_of(x->ndim, x->shape);
    for (int64_t i = 0; i < count; i++)
        want[i] = value_at(x, i);
    must_be(x->t, count, want, NULL);
    const node *n = x->node;
    cup_tensor *gradient = cup_grad(x->t);
    bool wants = n && (n->parameter || n->retained) && n->has_sum;
    MUST(!wants == !gradient);
    if (wants)
        must_be(gradient, count, n->sum, n->sum_size);
}

#endif
