/* Formulas as attention takes them: the score, its derivatives by what it is made of, and the text
 * that its kernels are compiled with. They stay with the context, as the tape may need them. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "custom/expr.h"
#include "custom/score.h"
#include "custom/vectors.h"

#define NODES_MOST 256 /* of a formula with its derivatives: the CPU keeps all of them */
#define TEXTS_MOST 10

typedef struct score_text {
    const char *file;
    char *text;
} score_text;

struct cup__score {
    cup__score_formula base; /* first: attention knows of no more */
    struct cup__score *next;
    cup__expr_node *nodes; /* inputs are numbered as attention's vectors */
    int count;
    int32_t gives[CUP__GIVES]; /* nodes; -1: it is 0 */
    score_text texts[TEXTS_MOST];
};

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

/* The nodes of what the formula gives, in a graph whose inputs are still those of the formula. */
static cup_status differentiate(cup_expr *e, cup__graph *g, int32_t gives[CUP__GIVES])
{
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
    int hidden = open < 0 ? 0 : cup__graph_number(g, -INFINITY);
    gives[CUP__GIVES_SCORE] =
        open < 0 || hidden < 0 ? score : cup__graph_add(g, CUP__WHERE, open, score, hidden);
    if (gives[CUP__GIVES_SLOPE] < 0)
        gives[CUP__GIVES_SLOPE] = cup__graph_number(g, 0);
    return e->c->error.status;
}

/* Keeps what is needed, with inputs numbered as attention's vectors; false without memory. */
static bool take_nodes(struct cup__score *s, const cup_expr *e, const cup__graph *g)
{
    int32_t *number = cup__calloc((size_t)g->count, sizeof *number);
    int leaves[CUP_EXPR_INPUTS], tensors = 0;
    for (int i = 0; i < e->formula.inputs; i++)
        leaves[i] = cup__score_reads(e, i, &tensors);
    for (int i = 0; number && i < CUP__GIVES; i++)
        if (s->gives[i] >= 0)
            number[s->gives[i]] = 1;
    for (int node = g->count; number && node-- > 0;)
        for (int i = 0; number[node] && i < cup__functions[g->nodes[node].function].arity; i++)
            number[g->nodes[node].in[i]] = 1;
    for (int node = 0; number && node < g->count; node++)
        number[node] = number[node] ? s->count++ : -1;
    s->nodes = number ? cup__calloc((size_t)s->count, sizeof *s->nodes) : NULL;
    for (int node = 0; s->nodes && node < g->count; node++) {
        if (number[node] < 0)
            continue;
        cup__expr_node n = g->nodes[node];
        for (int i = 0; i < cup__functions[n.function].arity; i++)
            n.in[i] = number[n.in[i]];
        if (n.function == CUP__INPUT)
            n.in[0] = leaves[n.in[0]];
        s->nodes[number[node]] = n;
    }
    for (int i = 0; s->nodes && i < CUP__GIVES; i++)
        s->gives[i] = s->gives[i] < 0 ? -1 : number[s->gives[i]];
    s->base.tensors = tensors;
    cup__free(number);
    return s->nodes != NULL;
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
    bool has[NODES_MOST] = {false};
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

static bool is_by_parameter(const struct cup__score *s, const cup__expr_node *n)
{
    return n->function == CUP__DIV && s->nodes[n->in[1]].function == CUP__PARAMETER;
}

/* The tanh of a quotient; a score is scaled by what it is divided by as well. */
static void add_tanh_by(const struct cup__score *s, const cup__expr_node *quotient, cup__text *out)
{
    const cup__expr_node *x = &s->nodes[quotient->in[0]];
    int parameter = s->nodes[quotient->in[1]].in[0];
    if (x->function == CUP__INPUT && x->in[0] == CUP__READS_SCORE)
        cup__text_add(out, "tanh_by(c, raw, scale, %d)", parameter);
    else
        cup__text_add(out, "tanh_by(c, t%d, (Real)1, %d)", quotient->in[0], parameter);
}

/* A division by a parameter is a product with what is found once. */
static void add_node(const struct cup__score *s, int node, cup__text *out)
{
    static const char *const names[] = {"score", "query", "key", "head", "batch"};
    const cup__expr_node *n = &s->nodes[node];
    cup__text_add(out, "    const Real t%d = ", node);
    if (n->function == CUP__INPUT && n->in[0] < CUP__READS_TENSORS)
        cup__text_add(out, "%s", names[n->in[0]]);
    else if (n->function == CUP__INPUT)
        cup__text_add(out, "x[%d]", n->in[0] - CUP__READS_TENSORS);
    else if (n->function == CUP__PARAMETER)
        cup__text_add(out, "parameter_of<Real>(c, %d)", n->in[0]);
    else if (n->function == CUP__TANH && is_by_parameter(s, &s->nodes[n->in[0]]))
        add_tanh_by(s, &s->nodes[n->in[0]], out);
    else if (is_by_parameter(s, n))
        cup__text_add(out, "by_parameter(c, t%d, %d)", n->in[0], s->nodes[n->in[1]].in[0]);
    else
        cup__node_source(n, "Real", out);
    cup__text_add(out, "; \\\n");
}

static char *make_source(const struct cup__score *s, const char *file)
{
    cup__text out = {0};
    cup__text_add(&out,
                  "/* A formula may need more registers than there are: CUP_SPILLS_ALLOWED. */\n"
                  "#define FORMULA 1\n#define FORMULA_TENSORS %d\n"
                  "#define FORMULA_SLOPED %d\n#define SCORE_FORMULA \\\n",
                  s->base.tensors, s->base.sloped);
    for (int node = 0; node < s->count; node++)
        add_node(s, node, &out);
    cup__text_add(&out, "    y.score = t%d; \\\n    y.slope = t%d;", s->gives[CUP__GIVES_SCORE],
                  s->gives[CUP__GIVES_SLOPE]);
    for (int i = 0; i < s->base.tensors; i++) {
        int node = s->gives[CUP__GIVES_TENSORS + i];
        if (node < 0)
            cup__text_add(&out, " \\\n    y.d[%d] = 0;", i);
        else
            cup__text_add(&out, " \\\n    y.d[%d] = t%d;", i, node);
    }
    cup__text_add(&out, "\n#include \"%s\"\n", file);
    if (!out.failed)
        return out.bytes;
    cup__text_free(&out);
    return NULL;
}

static const char *source(cup__score_formula *f, const char *file)
{
    struct cup__score *s = (struct cup__score *)f;
    int i = 0;
    while (i < TEXTS_MOST - 1 && s->texts[i].file && strcmp(s->texts[i].file, file))
        i++;
    if (!s->texts[i].text) {
        s->texts[i].file = file;
        s->texts[i].text = make_source(s, file);
    }
    return s->texts[i].text;
}

static void score_free(struct cup__score *s)
{
    for (int i = 0; i < TEXTS_MOST; i++)
        cup__free(s->texts[i].text);
    cup__free(s->nodes);
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
           !memcmp(a->nodes, b->nodes, (size_t)a->count * sizeof *a->nodes);
}

static void describe(struct cup__score *s)
{
    cup__score_formula *f = &s->base;
    f->sloped = !is_number(s, s->gives[CUP__GIVES_SLOPE], 1);
    for (int i = 0; i < f->tensors; i++) {
        int node = s->gives[CUP__GIVES_TENSORS + i];
        if (node < 0)
            continue;
        f->differs |= is_number(s, node, 0) ? 0 : 1u << i;
        f->by_score |= has_score(s, node) ? 1u << i : 0;
    }
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
    if (good && differentiate(e, &g, s->gives) == CUP_OK)
        good = take_nodes(s, e, &g);
    cup__graph_close(&g);
    if (!good)
        cup__fail(&e->c->error, CUP_MEMORY, "out of host memory for a formula");
    else if (s->count > NODES_MOST && e->c->error.status == CUP_OK)
        ERROR(e, "with its derivatives it has %d operations, and attention takes %d", s->count,
              NODES_MOST);
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
