/* Gradients of formulas, which are formulas: those of inputs of the full shape come out of one
 * kernel, those of inputs that were broadcast alike out of one that folds. */
#include <string.h>

#include "base/memory.h"
#include "custom/program.h"
#include "dispatch/attributes.h"

/* What the programs of a gradient depend on. */
typedef struct slopes_key {
    uint32_t given, wanted;                /* results with a gradient, inputs that want one */
    int32_t ndim;                          /* before folding */
    uint32_t over[CUP_EXPR_INPUTS];        /* dimensions an input was broadcast over */
    int32_t dtype[CUP_EXPR_INPUTS];
} slopes_key;

/* One program, which gives the gradients of inputs that were broadcast over the same dimensions. */
typedef struct group {
    cup__program *program;
    int inputs[CUP_EXPR_RESULTS], count;
    int sources[CUP__PROGRAM_INPUTS]; /* of its inputs: inputs, then gradients, of the formula */
} group;

typedef struct cup__slopes {
    struct cup__slopes *next;
    slopes_key key;
    group groups[CUP_EXPR_INPUTS];
    int count;
} cup__slopes;

void cup__slopes_free(struct cup__slopes *slopes)
{
    while (slopes) {
        struct cup__slopes *next = slopes->next;
        cup__free(slopes);
        slopes = next;
    }
}

/* The formula and its derivatives in one graph, in which input n + j is the gradient of result j
 * and one more parameter is 1 / elements folded together. */
static cup_status derive(cup_context *c, const cup__program *p, uint32_t given, cup__graph *g,
                         int *slopes)
{
    cup__graph_open(g, &c->error, CUP__PROGRAM_NODES);
    int32_t *number = cup__malloc((size_t)p->count * sizeof *number);
    if (!number)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a derivative");
    bool good = true;
    for (int node = 0; node < p->count && good; node++) {
        const cup__expr_node *n = &p->nodes[node];
        int in[3] = {-1, -1, -1};
        for (int i = 0; i < cup__functions[n->function].arity; i++)
            in[i] = number[n->in[i]];
        if (n->function == CUP__NUMBER)
            number[node] = cup__graph_number(g, n->value);
        else if (n->function <= CUP__PARAMETER)
            number[node] = cup__graph_leaf(g, (cup__function)n->function, n->in[0]);
        else
            number[node] = cup__graph_add(g, (cup__function)n->function, in[0], in[1], in[2]);
        good = number[node] >= 0;
    }
    int results[CUP_EXPR_RESULTS], seeds[CUP_EXPR_RESULTS];
    for (int j = 0; j < p->results && good; j++) {
        results[j] = number[p->result[j].node];
        seeds[j] = given >> j & 1 ? cup__graph_leaf(g, CUP__INPUT, p->inputs + j) : -1;
        if (p->result[j].fold == CUP_EXPR_FOLD_MEAN && seeds[j] >= 0)
            seeds[j] = cup__graph_add(g, CUP__MUL, seeds[j],
                                      cup__graph_leaf(g, CUP__PARAMETER, p->parameters), -1);
        good = seeds[j] >= 0 || !(given >> j & 1);
    }
    cup__free(number);
    if (!good || cup__derive(g, results, seeds, p->results, slopes, p->inputs) < 0)
        return c->error.status;
    return CUP_OK;
}

/* Marks the inputs that a node is made of. */
static cup_status mark_inputs(const cup__graph *g, int node, uint32_t *inputs)
{
    bool *needed = cup__calloc((size_t)g->count, sizeof *needed);
    if (!needed)
        return cup__fail(g->error, CUP_MEMORY, "out of host memory for a derivative");
    needed[node] = true;
    for (; node >= 0; node--) {
        const cup__expr_node *n = &g->nodes[node];
        if (needed[node] && n->function == CUP__INPUT)
            *inputs |= 1u << n->in[0];
        for (int i = 0; needed[node] && i < cup__functions[n->function].arity; i++)
            needed[n->in[i]] = true;
    }
    cup__free(needed);
    return CUP_OK;
}

cup_status cup__slopes_need(cup_context *c, const cup__program *p, uint32_t *need)
{
    cup__graph g;
    int slopes[CUP__PROGRAM_INPUTS];
    *need = 0;
    if (p->derivative)
        return CUP_OK;
    cup_status status = derive(c, p, (1u << p->results) - 1, &g, slopes);
    for (int i = 0; i < p->inputs && status == CUP_OK; i++)
        if (slopes[i] >= 0)
            status = mark_inputs(&g, slopes[i], need);
    *need &= (1u << p->inputs) - 1;
    cup__graph_close(&g);
    return status;
}

/* The inputs a group's program reads, numbered anew. */
static void renumber(group *to, cup__formula *f, uint32_t inputs)
{
    cup__graph *g = f->graph;
    int32_t number[32];
    f->inputs = 0;
    for (int i = 0; i < 32; i++)
        if (inputs >> i & 1) {
            number[i] = f->inputs;
            to->sources[f->inputs++] = i;
        }
    for (int node = 0; node < g->count; node++)
        if (g->nodes[node].function == CUP__INPUT)
            g->nodes[node].in[0] = inputs >> g->nodes[node].in[0] & 1
                                       ? number[g->nodes[node].in[0]]
                                       : CUP__PROGRAM_INPUTS;
}

static cup_status make_group(cup_context *c, const cup__program *p, const slopes_key *key,
                             group *to)
{
    cup__graph g;
    int slopes[CUP__PROGRAM_INPUTS];
    uint32_t inputs = 0, over = key->over[to->inputs[0]];
    cup__formula f = {
        .graph = &g, .parameters = p->parameters + 1, .keep = true, .derivative = true};
    cup_status status = derive(c, p, key->given, &g, slopes);
    for (int i = 0; i < to->count && status == CUP_OK; i++) {
        int input = to->inputs[i];
        f.result[f.results++] = (cup__program_result){
            slopes[input], over ? CUP_EXPR_FOLD_SUM : CUP_EXPR_FOLD_NONE, key->dtype[input]};
        status = mark_inputs(&g, slopes[input], &inputs);
    }
    f.folded = over != 0;
    for (int d = 0; d < 8; d++)
        if (over >> d & 1)
            f.axes[f.axis_count++] = d;
    if (status == CUP_OK) {
        renumber(to, &f, inputs);
        to->program = cup__program_get(c, &f);
    }
    cup__graph_close(&g);
    return to->program ? CUP_OK : c->error.status;
}

/* Which inputs have a gradient that is not 0, and their groups. */
static cup_status make_slopes(cup_context *c, const cup__program *p, cup__slopes *s)
{
    cup__graph g;
    int slopes[CUP__PROGRAM_INPUTS];
    cup_status status = derive(c, p, s->key.given, &g, slopes);
    cup__graph_close(&g);
    for (int i = 0; i < p->inputs && status == CUP_OK; i++) {
        int at = 0;
        if (slopes[i] < 0 || !(s->key.wanted >> i & 1))
            continue;
        while (at < s->count && (s->groups[at].count == CUP_EXPR_RESULTS ||
                                 s->key.over[s->groups[at].inputs[0]] != s->key.over[i]))
            at++;
        s->count += at == s->count;
        s->groups[at].inputs[s->groups[at].count++] = i;
    }
    for (int k = 0; k < s->count && status == CUP_OK; k++)
        status = make_group(c, p, &s->key, &s->groups[k]);
    return status;
}

static cup__slopes *find_slopes(cup_context *c, cup__program *p, const slopes_key *key)
{
    for (cup__slopes *s = p->slopes; s; s = s->next)
        if (!memcmp(&s->key, key, sizeof *key))
            return s;
    cup__slopes *s = cup__calloc(1, sizeof *s);
    if (!s) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a derivative");
        return NULL;
    }
    s->key = *key;
    if (make_slopes(c, p, s) != CUP_OK) {
        cup__free(s);
        return NULL;
    }
    s->next = p->slopes;
    p->slopes = s;
    return s;
}

/* A call in backward: what it works with, and the views and numbers it makes of that. */
typedef struct back {
    cup__grad *g;
    const cup__program *program;
    cup__shape full;
    cup_tensor *source[CUP__PROGRAM_INPUTS];
    cup__expr_attributes attributes;
} back;

static void find_full(back *b)
{
    const cup__grad *g = b->g;
    for (int i = 0; i < g->in_count; i++)
        if (g->in_shape[i].ndim > b->full.ndim)
            b->full.ndim = g->in_shape[i].ndim;
    for (int d = 0; d < b->full.ndim; d++) {
        b->full.size[d] = 1;
        for (int i = 0; i < g->in_count; i++) {
            int at = d - (b->full.ndim - g->in_shape[i].ndim);
            if (at >= 0 && g->in_shape[i].size[at] != 1)
                b->full.size[d] = g->in_shape[i].size[at];
        }
    }
}

static uint32_t folded_of(const back *b)
{
    uint32_t folded = 0;
    const cup__program *p = b->program;
    if (p->folded && !p->axis_count)
        return (1u << b->full.ndim) - 1;
    for (int i = 0; p->folded && i < p->axis_count; i++)
        folded |= 1u << (p->axes[i] < 0 ? p->axes[i] + b->full.ndim : p->axes[i]);
    return folded;
}

static cup_tensor *reshaped(cup_context *c, cup_tensor *t, const cup__shape *shape)
{
    cup__shape own = cup__shape_of(t);
    return cup__shape_equal(&own, shape) ? t : cup_reshape(c, t, shape->ndim, shape->size);
}

/* The gradients of the results, with folded dimensions of size 1. */
static cup_status find_sources(back *b)
{
    const cup__grad *g = b->g;
    uint32_t folded = folded_of(b);
    cup__shape kept = b->full;
    double length = 1;
    for (int d = 0; d < kept.ndim; d++)
        if (folded >> d & 1) {
            length *= (double)kept.size[d];
            kept.size[d] = 1;
        }
    b->attributes.parameters[b->program->parameters] = 1 / length;
    for (int i = 0; i < g->in_count; i++)
        b->source[i] = g->in[i];
    for (int j = 0; j < g->out_count; j++)
        if (g->d_out[j])
            b->source[g->in_count + j] = reshaped(g->c, g->d_out[j], &kept);
    return g->c->error.status;
}

static slopes_key key_of(const back *b)
{
    const cup__grad *g = b->g;
    slopes_key key;
    memset(&key, 0, sizeof key);
    key.ndim = b->full.ndim;
    for (int j = 0; j < g->out_count; j++)
        key.given |= g->d_out[j] ? 1u << j : 0;
    for (int i = 0; i < g->in_count; i++) {
        const cup__shape *shape = &g->in_shape[i];
        key.wanted |= g->wanted[i] ? 1u << i : 0;
        key.dtype[i] = (int32_t)shape->dtype;
        for (int d = 0; d < key.ndim; d++) {
            int at = d - (key.ndim - shape->ndim);
            int64_t size = at < 0 ? 1 : shape->size[at];
            key.over[i] |= size != b->full.size[d] ? 1u << d : 0;
        }
    }
    return key;
}

static cup_status run_group(back *b, const group *k)
{
    cup_context *c = b->g->c;
    cup_tensor *in[CUP__PROGRAM_INPUTS], *out[CUP__MAX_OUT] = {NULL};
    b->attributes.program = k->program;
    b->attributes.full = &b->full;
    for (int i = 0; i < k->program->inputs; i++)
        in[i] = b->source[k->sources[i]];
    if (!cup__op_call(c, &k->program->row, in, k->program->inputs, &b->attributes, out))
        return c->error.status;
    for (int i = 0; i < k->count; i++)
        b->g->d_in[k->inputs[i]] = reshaped(c, out[i], &b->g->in_shape[k->inputs[i]]);
    return c->error.status;
}

cup_status cup__expr_gradient(cup__grad *g)
{
    const cup__expr_attributes *a = g->attributes;
    back b = {.g = g, .program = a->program, .attributes = *a};
    find_full(&b);
    CUP_TRY(find_sources(&b));
    slopes_key key = key_of(&b);
    const cup__slopes *s = find_slopes(g->c, (cup__program *)(uintptr_t)a->program, &key);
    if (!s)
        return g->c->error.status;
    for (int k = 0; k < s->count; k++)
        CUP_TRY(run_group(&b, &s->groups[k]));
    return CUP_OK;
}

static bool is_wide(const cup__shape *shapes, int count)
{
    for (int i = 0; i < count; i++)
        if (cup_dtype_size(shapes[i].dtype) == 8 || shapes[i].dtype == CUP_I32)
            return true;
    return false;
}

cup_status cup__expr_composed(cup__grad *g)
{
    const cup__expr_attributes *a = g->attributes;
    back b = {.g = g, .program = a->program, .attributes = *a};
    cup__graph graph;
    int slopes[CUP__PROGRAM_INPUTS];
    find_full(&b);
    CUP_TRY(find_sources(&b));
    bool wide = is_wide(g->in_shape, g->in_count) || is_wide(g->out_shape, g->out_count);
    cup_status status = derive(g->c, a->program, key_of(&b).given, &graph, slopes);
    const cup__slopes_call call = {.c = g->c,
                                   .graph = &graph,
                                   .source = b.source,
                                   .parameters = b.attributes.parameters,
                                   .full = b.full,
                                   .dtype = wide ? CUP_F64 : CUP_F32};
    if (status == CUP_OK)
        status = cup__slopes_compose(&call, g, slopes);
    cup__graph_close(&graph);
    return status;
}
