/* A formula of attention as the macro that attention_formula.cuh evaluates. */
#include <math.h>

#include "custom/score.h"

bool cup__score_is_quotient(const struct cup__score *s, const cup__expr_node *n)
{
    if (n->function != CUP__DIV)
        return false;
    const cup__expr_node *by = &s->nodes[n->in[1]];
    return by->function == CUP__PARAMETER || (by->function == CUP__NUMBER && by->value != 0);
}

bool cup__score_is_floored(const struct cup__score *s, int node)
{
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i].function == CUP__FLOOR && s->nodes[i].in[0] == node)
            return true;
    return false;
}

static bool is_tanh_of_quotient(const struct cup__score *s, int node)
{
    const cup__expr_node *n = &s->nodes[node];
    return n->function == CUP__TANH && cup__score_is_quotient(s, &s->nodes[n->in[0]]);
}

void cup__score_divisor(const struct cup__score *s, const cup__expr_node *quotient, cup__text *out)
{
    const cup__expr_node *by = &s->nodes[quotient->in[1]];
    if (by->function == CUP__PARAMETER) {
        cup__text_add(out, "divisor_of<Real>(c, %d)", by->in[0]);
        return;
    }
    cup__text_add(out, "divisor_number<Real>(");
    cup__node_source(by, "double", out);
    cup__text_add(out, ")");
}

/* The part of a tanh of a quotient; a score is scaled by what it is divided by as well. */
static void add_tanh_part(const struct cup__score *s, int node, cup__text *out)
{
    const cup__expr_node *quotient = &s->nodes[s->nodes[node].in[0]];
    const cup__expr_node *x = &s->nodes[quotient->in[0]];
    cup__text_add(out, "    const Real part%d = tanh_part(", node);
    if (x->function == CUP__INPUT && x->in[0] == CUP__READS_SCORE)
        cup__text_add(out, "raw, scale, ");
    else
        cup__text_add(out, "t%d, (Real)1, ", quotient->in[0]);
    cup__score_divisor(s, quotient, out);
    cup__text_add(out, "); \\\n");
}

/* Of a product that is a multiple of such a tanh the number of this in n->in; -1 where none is. */
static int find_tanh(const struct cup__score *s, const cup__expr_node *n)
{
    for (int i = 0; i < 2 && n->function == CUP__MUL; i++)
        if (is_tanh_of_quotient(s, n->in[i]) &&
            (s->nodes[n->in[1 - i]].function == CUP__PARAMETER ||
             s->nodes[n->in[1 - i]].function == CUP__NUMBER))
            return i;
    return -1;
}

static bool reads(const struct cup__score *s, int node, int what)
{
    return s->nodes[node].function == CUP__INPUT && s->nodes[node].in[0] == what;
}

/* Of a p / p with a parameter p the number of a, as derivatives of capped scores have it; -1 where
 * it is no such. */
static int find_uncancelled(const struct cup__score *s, const cup__expr_node *n)
{
    const cup__expr_node *product = cup__score_is_quotient(s, n) ? &s->nodes[n->in[0]] : n;
    if (product == n || product->function != CUP__MUL ||
        s->nodes[n->in[1]].function != CUP__PARAMETER)
        return -1;
    return product->in[0] == n->in[1]   ? product->in[1]
           : product->in[1] == n->in[1] ? product->in[0]
                                        : -1;
}

/* 1 of query - key, -1 of key - query. */
static int is_apart(const struct cup__score *s, const cup__expr_node *n)
{
    if (n->function != CUP__SUB)
        return 0;
    return reads(s, n->in[0], CUP__READS_QUERY) && reads(s, n->in[1], CUP__READS_KEY)   ? 1
           : reads(s, n->in[0], CUP__READS_KEY) && reads(s, n->in[1], CUP__READS_QUERY) ? -1
                                                                                        : 0;
}

/* A division by what is the same for all pairs is a product with what is found once. */
static void add_node(const struct cup__score *s, int node, cup__text *out)
{
    static const char *const names[] = {"score", "query", "key", "head", "batch"};
    const cup__expr_node *n = &s->nodes[node];
    int of_tanh = find_tanh(s, n);
    if (is_tanh_of_quotient(s, node))
        add_tanh_part(s, node, out);
    cup__text_add(out, "    const Real t%d = ", node);
    if (n->function == CUP__INPUT && n->in[0] < CUP__READS_TENSORS)
        cup__text_add(out, "%s", names[n->in[0]]);
    else if (n->function == CUP__INPUT)
        cup__text_add(out, "x[%d]", n->in[0] - CUP__READS_TENSORS);
    else if (n->function == CUP__PARAMETER)
        cup__text_add(out, "parameter_of<Real>(c, %d)", n->in[0]);
    else if (is_tanh_of_quotient(s, node))
        cup__text_add(out, "tanh_from(part%d)", node);
    else if (of_tanh >= 0)
        cup__text_add(out, "tanh_times(part%d, t%d)", n->in[of_tanh], n->in[1 - of_tanh]);
    else if (is_apart(s, n))
        cup__text_add(out, "%sapart", is_apart(s, n) < 0 ? "-" : "");
    else if (cup__score_is_quotient(s, n)) {
        if (find_uncancelled(s, n) >= 0)
            cup__text_add(out, "!UNUSUAL ? t%d : ", find_uncancelled(s, n));
        cup__text_add(out, "divided%s(t%d, ", cup__score_is_floored(s, node) ? "_exactly" : "",
                      n->in[0]);
        cup__score_divisor(s, n, out);
        cup__text_add(out, ")");
    } else
        cup__node_source(n, "Real", out);
    cup__text_add(out, "; \\\n");
}

/* Whether a node is the score or a multiple of it, which is never no number. */
static bool is_score(const struct cup__score *s, int node)
{
    const cup__expr_node *n = &s->nodes[node];
    return reads(s, node, CUP__READS_SCORE) ||
           (cup__score_is_quotient(s, n) && reads(s, n->in[0], CUP__READS_SCORE));
}

/* How large a node may be by those before it, for all places and for parameters of a usual size
 * (cup__score_formula); infinite: it may be anything. */
static double most_of(const struct cup__score *s, const cup__expr_node *n, const double *most)
{
    double a = n->function > CUP__PARAMETER ? most[n->in[0]] : 0;
    double b = n->function > CUP__PARAMETER && n->in[1] >= 0 ? most[n->in[1]] : 0;
    switch (n->function) {
    case CUP__NUMBER:
        return fabs(n->value);
    case CUP__PARAMETER:
        return CUP__PARAMETER_MOST;
    case CUP__INPUT:
        return n->in[0] == CUP__READS_SCORE || n->in[0] >= CUP__READS_TENSORS ? INFINITY : 0x1p31;
    case CUP__ADD:
    case CUP__SUB:
        return a + b;
    case CUP__MUL:
        return a * b;
    case CUP__DIV:
        return !cup__score_is_quotient(s, n) ? INFINITY
               : s->nodes[n->in[1]].function == CUP__NUMBER ? a / b
                                                            : a * CUP__PARAMETER_MOST;
    case CUP__NEG:
    case CUP__ABS:
        return a;
    case CUP__TANH:
    case CUP__SIGMOID:
        return isfinite(a) || is_score(s, n->in[0]) ? 1 : INFINITY;
    default:
        return INFINITY;
    }
}

/* Whether a node is finite in f32 as well, with some room. */
static bool is_finite(const struct cup__score *s, int node)
{
    double most[CUP__SCORE_NODES_MOST];
    for (int k = 0; k <= node; k++)
        most[k] = most_of(s, &s->nodes[k], most);
    return most[node] < 1e30;
}

/* As bits, those by which the derivative is finite for all places. */
static unsigned finite_tensors(const struct cup__score *s)
{
    unsigned finite = 0;
    for (int i = 0; i < s->base.tensors; i++) {
        int node = s->gives[CUP__GIVES_TENSORS + i];
        finite |= node < 0 || is_finite(s, node) ? 1u << i : 0;
    }
    return finite;
}

static void add_results(const struct cup__score *s, cup__text *out)
{
    int bare, open = cup__score_condition(s, &bare);
    cup__text_add(out, "    y.score = t%d; \\\n    y.bare = t%d; \\\n    y.slope = t%d; \\\n",
                  s->gives[CUP__GIVES_SCORE], bare, s->gives[CUP__GIVES_SLOPE]);
    if (open < 0)
        cup__text_add(out, "    y.seen = true;");
    else
        cup__text_add(out, "    y.seen = t%d != 0;", open);
}

char *cup__score_source(const struct cup__score *s, const char *file)
{
    cup__text out = {0};
    int bare, open = cup__score_condition(s, &bare);
    cup__text_add(&out,
                  "/* A formula may need more registers than there are: CUP_SPILLS_ALLOWED. */\n"
                  "#define FORMULA 1\n#define FORMULA_TENSORS %d\n"
                  "#define FORMULA_SLOPED %d\n#define FORMULA_FINITE_SLOPE %d\n"
                  "#define FORMULA_FINITE %u\n#define FORMULA_HIDES %d\n"
                  "#define SCORE_FORMULA \\\n",
                  s->base.tensors, s->base.sloped, is_finite(s, s->gives[CUP__GIVES_SLOPE]),
                  finite_tensors(s), open >= 0 && reads(s, bare, CUP__READS_SCORE));
    for (int node = 0; node < s->count; node++)
        add_node(s, node, &out);
    add_results(s, &out);
    for (int i = 0; i < s->base.tensors; i++) {
        int node = s->gives[CUP__GIVES_TENSORS + i];
        if (node < 0)
            cup__text_add(&out, " \\\n    y.d[%d] = 0;", i);
        else
            cup__text_add(&out, " \\\n    y.d[%d] = t%d;", i, node);
    }
    cup__text_add(&out, "\n");
    cup__score_spans(s, &out);
    cup__text_add(&out, "#include \"%s\"\n", file);
    if (!out.failed)
        return out.bytes;
    cup__text_free(&out);
    return NULL;
}
