/* The condition of a formula as the macro that attention_spans.cuh evaluates for whole tiles. */
#include <math.h>

#include "custom/score.h"

static const char *function_of(int function)
{
    static const char *const names[CUP__FUNCTIONS] = {
        [CUP__ADD] = "add",
        [CUP__SUB] = "sub",
        [CUP__MUL] = "mul",
        [CUP__DIV] = "div",
        [CUP__MIN] = "min",
        [CUP__MAX] = "max",
        [CUP__EQUAL] = "equal",
        [CUP__NOT_EQUAL] = "not_equal",
        [CUP__LESS] = "less",
        [CUP__LESS_EQUAL] = "less_equal",
        [CUP__AND] = "and",
        [CUP__OR] = "or",
        [CUP__NOT] = "not",
        [CUP__WHERE] = "where",
        [CUP__NEG] = "neg",
        [CUP__ABS] = "abs",
        [CUP__FLOOR] = "floor",
    };
    return names[function];
}

/* Whether anything may be known of a node by those before it. */
static bool is_known(const cup__expr_node *n, const bool *known)
{
    if (n->function == CUP__INPUT)
        return n->in[0] != CUP__READS_SCORE && n->in[0] < CUP__READS_TENSORS;
    if (n->function < CUP__INPUT || n->function == CUP__PARAMETER)
        return true;
    if (n->function == CUP__AND)
        return known[n->in[0]] || known[n->in[1]];
    bool all = function_of(n->function) != NULL;
    for (int i = 0; i < cup__functions[n->function].arity; i++)
        all = all && known[n->in[i]];
    return all;
}

static void add_span(const struct cup__score *s, int node, bool known, cup__text *out)
{
    const cup__expr_node *n = &s->nodes[node];
    static const char *const names[] = {"", "query", "key", "head", "batch"};
    cup__text_add(out, "    const span u%d = ", node);
    if (!known)
        cup__text_add(out, "span_any()");
    else if (n->function == CUP__INPUT)
        cup__text_add(out, "%s", names[n->in[0]]);
    else if (n->function == CUP__PARAMETER)
        cup__text_add(out, "span_number(parameter_of<Real>(c, %d))", n->in[0]);
    else if (n->function == CUP__NUMBER) {
        cup__text_add(out, "span_number(");
        cup__node_source(n, "Real", out);
        cup__text_add(out, ")");
    } else if (cup__score_is_quotient(s, n) && cup__score_is_floored(s, node)) {
        cup__text_add(out, "span_divided(u%d, ", n->in[0]);
        cup__score_divisor(s, n, out);
        cup__text_add(out, ")");
    } else {
        cup__text_add(out, "span_%s(", function_of(n->function));
        for (int i = 0; i < cup__functions[n->function].arity; i++)
            cup__text_add(out, "%su%d", i ? ", " : "", n->in[i]);
        cup__text_add(out, ")");
    }
    cup__text_add(out, "; \\\n");
}

int cup__score_condition(const struct cup__score *s, int *bare)
{
    const cup__expr_node *top = &s->nodes[s->gives[CUP__GIVES_SCORE]];
    bool hides = top->function == CUP__WHERE &&
                 s->nodes[top->in[2]].function == CUP__NUMBER &&
                 s->nodes[top->in[2]].value == -INFINITY;
    *bare = hides ? top->in[1] : s->gives[CUP__GIVES_SCORE];
    return hides ? top->in[0] : -1;
}

/* What is known of the nodes up to the condition's, which is given back; -1 where nothing is known
 * of that. */
static int find_known(const struct cup__score *s, bool known[CUP__SCORE_NODES_MOST])
{
    int bare, open = cup__score_condition(s, &bare);
    for (int node = 0; node <= open; node++)
        known[node] = is_known(&s->nodes[node], known);
    return open >= 0 && known[open] ? open : -1;
}

bool cup__score_sees(const struct cup__score *s)
{
    bool known[CUP__SCORE_NODES_MOST] = {false};
    return find_known(s, known) >= 0;
}

void cup__score_spans(const struct cup__score *s, cup__text *out)
{
    bool known[CUP__SCORE_NODES_MOST] = {false}, used[CUP__SCORE_NODES_MOST] = {false};
    int open = find_known(s, known);
    cup__text_add(out, "#define FORMULA_SEES %d\n", open >= 0);
    if (open < 0)
        return;
    used[open] = true;
    for (int node = open; node >= 0; node--)
        for (int i = 0; used[node] && known[node] &&
                        i < cup__functions[s->nodes[node].function].arity; i++)
            used[s->nodes[node].in[i]] = true;
    cup__text_add(out, "#define FORMULA_SPANS \\\n");
    for (int node = 0; node <= open; node++)
        if (used[node])
            add_span(s, node, known[node], out);
    cup__text_add(out, "    seen = u%d;\n", open);
}
