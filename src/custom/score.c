/* Formulas as attention takes them: the score and its derivatives by what it is made of. They stay
 * with the context, as the tape may need them. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "custom/expr.h"
#include "custom/score.h"
#include "custom/vectors.h"

#define ERROR(e, ...) cup__fail(&(e)->c->error, CUP_ARGUMENT, "formula: " __VA_ARGS__)

int cup__score_reads(const cup_expr *e, int input, int *tensors)
{
    static const char *const names[CUP__READS_TENSORS] = {"score", "query", "key", "head", "batch"};
    for (int i = 0; i < CUP__READS_TENSORS; i++)
        if (!strcmp(e->names.names[input].name, names[i]))
            return i;
    return CUP__READS_TENSORS + (*tensors)++;
}

/* Of `where(open, score, -inf)` the score, which then has no jump to be differentiated, and the
 * condition beside that there was; -1 is none. */
static int part_of_where(cup__graph *g, int node, int *open)
{
    const cup__expr_node *n = &g->nodes[node];
    while (n->function == CUP__WHERE) {
        const cup__expr_node *b = &g->nodes[n->in[1]], *c = &g->nodes[n->in[2]];
        bool then = b->function == CUP__NUMBER && b->value == -INFINITY;
        if (!then && !(c->function == CUP__NUMBER && c->value == -INFINITY))
            break;
        int condition = n->in[0], rest = then ? n->in[2] : n->in[1];
        if (then)
            condition = cup__graph_add(g, CUP__NOT, condition, -1, -1);
        *open = *open < 0 ? condition : cup__graph_add(g, CUP__AND, *open, condition, -1);
        if (*open < 0)
            return -1;
        node = rest;
        n = &g->nodes[node];
    }
    return node;
}

/* Takes the limits out of a condition; `s` gets those, as nodes of the graph. */
static cup_status take_limits(struct cup__score *s, const cup_expr *e, cup__graph *g, int *open)
{
    int input[CUP__READS], tensors = 0, condition = *open;
    for (int i = 0; i < CUP__READS; i++)
        input[i] = -1;
    for (int i = 0; i < e->formula.inputs; i++)
        input[cup__score_reads(e, i, &tensors)] = i;
    if (condition < 0)
        return CUP_OK;
    return cup__limits_split(g, condition, input[CUP__READS_QUERY], input[CUP__READS_KEY],
                             s->limit, CUP__SCORE_LIMITS_MOST, &s->limits, open);
}

/* The nodes of what the formula gives, in a graph whose inputs are still those of the formula. */
static cup_status differentiate(cup_expr *e, cup__graph *g, struct cup__score *s)
{
    int32_t *gives = s->gives;
    int slopes[CUP_EXPR_INPUTS], tensors = 0, open = -1;
    int one = cup__graph_number(g, 1);
    if (e->formula.results == 2)
        open = e->formula.result[1].node;
    int score = one < 0 ? -1 : part_of_where(g, e->formula.result[0].node, &open);
    if (score < 0 || cup__derive(g, &score, &one, 1, slopes, e->formula.inputs) < 0)
        return e->c->error.status;
    for (int i = 0; i < CUP__GIVES; i++)
        gives[i] = -1;
    for (int i = 0; i < e->formula.inputs; i++) {
        int reads = cup__score_reads(e, i, &tensors);
        if (reads == CUP__READS_SCORE)
            gives[CUP__GIVES_SLOPE] = slopes[i];
        else if (reads >= CUP__READS_TENSORS)
            gives[CUP__GIVES_TENSORS + reads - CUP__READS_TENSORS] = slopes[i];
    }
    CUP_TRY(take_limits(s, e, g, &open));
    int hidden = open < 0 ? 0 : cup__graph_number(g, -INFINITY);
    gives[CUP__GIVES_SCORE] =
        open < 0 || hidden < 0 ? score : cup__graph_add(g, CUP__WHERE, open, score, hidden);
    if (gives[CUP__GIVES_SLOPE] < 0)
        gives[CUP__GIVES_SLOPE] = cup__graph_number(g, 0);
    return e->c->error.status;
}

/* Nodes that are kept, with inputs numbered as attention's vectors. */
typedef struct kept {
    cup__expr_node *nodes;
    int count;
} kept;

/* Keeps what the nodes of `roots`, of which any may be -1, are made of, and numbers these anew;
 * no nodes without memory. */
static kept keep(const cup__graph *g, const int *leaves, int32_t *roots, int count)
{
    kept to = {NULL, 0};
    int32_t *number = cup__calloc((size_t)g->count + 1, sizeof *number);
    for (int i = 0; number && i < count; i++)
        if (roots[i] >= 0)
            number[roots[i]] = 1;
    for (int node = g->count; number && node-- > 0;)
        for (int i = 0; number[node] && i < cup__functions[g->nodes[node].function].arity; i++)
            number[g->nodes[node].in[i]] = 1;
    for (int node = 0; number && node < g->count; node++)
        number[node] = number[node] ? to.count++ : -1;
    to.nodes = number ? cup__calloc((size_t)to.count + 1, sizeof *to.nodes) : NULL;
    for (int node = 0; to.nodes && node < g->count; node++) {
        if (number[node] < 0)
            continue;
        cup__expr_node n = g->nodes[node];
        for (int i = 0; i < cup__functions[n.function].arity; i++)
            n.in[i] = number[n.in[i]];
        if (n.function == CUP__INPUT)
            n.in[0] = leaves[n.in[0]];
        to.nodes[number[node]] = n;
    }
    for (int i = 0; to.nodes && i < count; i++)
        roots[i] = roots[i] < 0 ? -1 : number[roots[i]];
    cup__free(number);
    return to;
}

/* False without memory. */
static bool take_nodes(struct cup__score *s, const cup_expr *e, const cup__graph *g)
{
    int leaves[CUP_EXPR_INPUTS], tensors = 0;
    for (int i = 0; i < e->formula.inputs; i++)
        leaves[i] = cup__score_reads(e, i, &tensors);
    kept of_score = keep(g, leaves, s->gives, CUP__GIVES);
    kept of_limits = keep(g, leaves, s->limit, s->limits);
    s->nodes = of_score.nodes;
    s->count = of_score.count;
    s->limit_nodes = of_limits.nodes;
    s->limit_nodes_count = of_limits.count;
    s->base.tensors = tensors;
    return s->nodes && s->limit_nodes;
}

static bool is_number(const struct cup__score *s, int node, double value)
{
    return s->nodes[node].function == CUP__NUMBER && s->nodes[node].value == value;
}

/* Whether the score is part of a node. */
static bool has_score(const struct cup__score *s, int node)
{
    const cup__expr_node *n = &s->nodes[node];
    if (n->function == CUP__INPUT)
        return n->in[0] == CUP__READS_SCORE;
    bool has[CUP__SCORE_NODES_MOST] = {false};
    for (int k = 0; k <= node; k++) {
        n = &s->nodes[k];
        has[k] = n->function == CUP__INPUT && n->in[0] == CUP__READS_SCORE;
        for (int i = 0; i < cup__functions[n->function].arity; i++)
            has[k] |= has[n->in[i]];
    }
    return has[node];
}

static void evaluate(const cup__score_formula *f, cup__score_run *run)
{
    const struct cup__score *s = (const struct cup__score *)f;
    const void **value = run->room;
    size_t each = run->wide ? sizeof(double) : sizeof(float);
    char *to = (char *)run->room + (size_t)s->count * sizeof *value;
    for (int node = 0; node < s->count; node++, to += (size_t)run->count * each) {
        const cup__expr_node *n = &s->nodes[node];
        const void *x[3] = {to, to, to};
        value[node] = to;
        if (n->function == CUP__INPUT) {
            value[node] = run->reads[n->in[0]];
        } else if (n->function <= CUP__PARAMETER) {
            double number = n->function == CUP__NUMBER ? n->value : run->parameters[n->in[0]];
            for (int64_t i = 0; i < run->count; i++) {
                if (run->wide)
                    ((double *)(void *)to)[i] = number;
                else
                    ((float *)(void *)to)[i] = (float)number;
            }
        } else {
            for (int i = 0; i < cup__functions[n->function].arity; i++)
                x[i] = value[n->in[i]];
            cup__vector_apply(run->wide, (cup__function)n->function, to, x, run->count);
        }
    }
    for (int i = 0; i < CUP__GIVES; i++)
        run->gives[i] = s->gives[i] < 0 ? NULL : value[s->gives[i]];
}

static const char *source(cup__score_formula *f, const char *file)
{
    struct cup__score *s = (struct cup__score *)f;
    int i = 0;
    while (i < CUP__SCORE_TEXTS_MOST - 1 && s->texts[i].file && strcmp(s->texts[i].file, file))
        i++;
    if (!s->texts[i].text) {
        s->texts[i].file = file;
        s->texts[i].text = cup__score_source(s, file);
    }
    return s->texts[i].text;
}

static void score_free(struct cup__score *s)
{
    for (int i = 0; i < CUP__SCORE_TEXTS_MOST; i++)
        cup__free(s->texts[i].text);
    cup__free(s->nodes);
    cup__free(s->limit_nodes);
    cup__free(s);
}

static void scores_free(void *first)
{
    for (struct cup__score *s = first; s;) {
        struct cup__score *next = s->next;
        score_free(s);
        s = next;
    }
}

static bool equal(const struct cup__score *a, const struct cup__score *b)
{
    return a->count == b->count && a->base.tensors == b->base.tensors &&
           !memcmp(a->gives, b->gives, sizeof a->gives) &&
           !memcmp(a->nodes, b->nodes, (size_t)a->count * sizeof *a->nodes) &&
           a->limits == b->limits && a->limit_nodes_count == b->limit_nodes_count &&
           !memcmp(a->limit, b->limit, sizeof a->limit) &&
           !memcmp(a->limit_nodes, b->limit_nodes,
                   (size_t)a->limit_nodes_count * sizeof *a->limit_nodes);
}

static void describe(struct cup__score *s)
{
    cup__score_formula *f = &s->base;
    const cup__expr_node *score = &s->nodes[s->gives[CUP__GIVES_SCORE]];
    f->plain = score->function == CUP__INPUT && score->in[0] == CUP__READS_SCORE;
    f->sees = cup__score_sees(s);
    f->sloped = !is_number(s, s->gives[CUP__GIVES_SLOPE], 1);
    for (int i = 0; i < f->tensors; i++) {
        int node = s->gives[CUP__GIVES_TENSORS + i];
        if (node < 0)
            continue;
        f->differs |= is_number(s, node, 0) ? 0 : 1u << i;
        f->by_score |= has_score(s, node) ? 1u << i : 0;
    }
    for (int i = 0; i < s->count; i++)
        f->parameters |= s->nodes[i].function == CUP__PARAMETER ? 1u << s->nodes[i].in[0] : 0;
    f->room = (size_t)s->count * 2 * sizeof(double);
    f->evaluate = evaluate;
    f->source = source;
}

static cup_status check(cup_expr *e)
{
    const cup__formula *f = &e->formula;
    int tensors = 0;
    for (int i = 0; i < f->inputs; i++)
        cup__score_reads(e, i, &tensors);
    if (f->results < 1 || f->results > 2 || f->folded)
        return ERROR(e, "one for attention has a score and, perhaps, the condition under which a "
                        "key is seen, without folds");
    for (int j = 0; j < f->results; j++)
        if (f->result[j].dtype >= 0)
            return ERROR(e, "one for attention has no dtypes around its results");
    return tensors <= CUP__SCORE_TENSORS
               ? CUP_OK
               : ERROR(e, "one for attention takes up to %d tensors", CUP__SCORE_TENSORS);
}

static struct cup__score *make(cup_expr *e)
{
    cup__graph g;
    struct cup__score *s = cup__calloc(1, sizeof *s);
    cup__graph_open(&g, &e->c->error, CUP__PROGRAM_NODES);
    bool good = s && cup__graph_copy(&g, &e->graph);
    if (good && differentiate(e, &g, s) == CUP_OK)
        good = take_nodes(s, e, &g);
    cup__graph_close(&g);
    if (!good)
        cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a formula");
    else if (s->count > CUP__SCORE_NODES_MOST && e->c->error.status == CUP_OK)
        ERROR(e, "with its derivatives it has %d operations, and attention takes %d", s->count,
              CUP__SCORE_NODES_MOST);
    if (e->c->error.status == CUP_OK)
        return s;
    if (s)
        score_free(s);
    return NULL;
}

struct cup__score *cup__score_get(cup_expr *e)
{
    if (e->score)
        return e->score;
    struct cup__score *s = check(e) == CUP_OK ? make(e) : NULL;
    if (!s)
        return NULL;
    cup__slot *slot = &e->c->slots[CUP__SLOT_SCORES];
    for (struct cup__score *known = slot->kept; known; known = known->next)
        if (equal(known, s)) {
            score_free(s);
            return e->score = known;
        }
    describe(s);
    s->next = slot->kept;
    *slot = (cup__slot){s, scores_free};
    return e->score = s;
}

cup_status cup__score_limits(const struct cup__score *s, const double *parameters,
                             cup__error *error, cup__key_limits *out)
{
    const cup__limit_parts parts = {s->limit_nodes, s->limit_nodes_count, s->limit, s->limits};
    return cup__limits_read(&parts, CUP__READS_QUERY, CUP__READS_KEY, parameters, error, out);
}
