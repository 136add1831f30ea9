/* A formula written out: what is used more than once gets a name, so that the text does not grow
 * beyond the formula. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "custom/graph.h"

typedef struct writer {
    const cup__graph *graph;
    const char *const *inputs, *const *parameters;
    int *uses; /* of each node */
    cup__text *out;
} writer;

static bool is_leaf(const cup__expr_node *n)
{
    return n->function <= CUP__PARAMETER;
}

static void write_number(cup__text *out, double value)
{
    if (value != value)
        cup__text_add(out, "(0/0)");
    else if (value > 1.7976931348623157e308 || value < -1.7976931348623157e308)
        cup__text_add(out, value > 0 ? "inf" : "(-inf)");
    else if (value < 0) {
        cup__text_add(out, "(");
        cup__text_add_number(out, value);
        cup__text_add(out, ")");
    } else
        cup__text_add_number(out, value);
}

static void write_term(const writer *w, int node);

static void write_formula(const writer *w, int node)
{
    const cup__expr_node *n = &w->graph->nodes[node];
    const cup__function_row *row = &cup__functions[n->function];
    bool sign = !isalpha((unsigned char)*row->name);
    if (n->function == CUP__NEG || n->function == CUP__NOT) {
        cup__text_add(w->out, n->function == CUP__NEG ? "-" : "!");
        write_term(w, n->in[0]);
        return;
    }
    if (!sign)
        cup__text_add(w->out, "%s(", row->name);
    for (int i = 0; i < row->arity; i++) {
        if (i)
            cup__text_add(w->out, sign ? " %s " : ", ", row->name);
        if (sign)
            write_term(w, n->in[i]);
        else if (is_leaf(&w->graph->nodes[n->in[i]]) || w->uses[n->in[i]] > 1)
            write_term(w, n->in[i]);
        else
            write_formula(w, n->in[i]);
    }
    if (!sign)
        cup__text_add(w->out, ")");
}

static void write_term(const writer *w, int node)
{
    const cup__expr_node *n = &w->graph->nodes[node];
    if (n->function == CUP__NUMBER)
        write_number(w->out, n->value);
    else if (n->function == CUP__INPUT)
        cup__text_add(w->out, "%s", w->inputs[n->in[0]]);
    else if (n->function == CUP__PARAMETER)
        cup__text_add(w->out, "%s", w->parameters[n->in[0]]);
    else if (w->uses[node] > 1)
        cup__text_add(w->out, "_%d", node);
    else if (isalpha((unsigned char)*cup__functions[n->function].name) &&
             n->function != CUP__NEG)
        write_formula(w, node);
    else {
        cup__text_add(w->out, "(");
        write_formula(w, node);
        cup__text_add(w->out, ")");
    }
}

static void count_uses(const cup__graph *g, const int *nodes, int count, int *uses)
{
    for (int i = 0; i < count; i++)
        uses[nodes[i]]++;
    for (int node = g->count; node-- > 0;)
        for (int i = 0; uses[node] && i < cup__functions[g->nodes[node].function].arity; i++)
            uses[g->nodes[node].in[i]]++;
}

bool cup__graph_words(const cup__graph *g, const int *nodes, int count, const char *const *inputs,
                      const char *const *parameters, const char *const *before,
                      const char *const *after, cup__text *out)
{
    writer w = {g, inputs, parameters, cup__calloc((size_t)g->count, sizeof *w.uses), out};
    if (!w.uses)
        return false;
    count_uses(g, nodes, count, w.uses);
    for (int node = 0; node < g->count; node++) {
        if (w.uses[node] < 2 || is_leaf(&g->nodes[node]))
            continue;
        cup__text_add(out, "_%d = ", node);
        write_formula(&w, node);
        cup__text_add(out, "; ");
    }
    for (int i = 0; i < count; i++) {
        cup__text_add(out, "%s%s", i ? ", " : "", before[i]);
        if (is_leaf(&g->nodes[nodes[i]]) || w.uses[nodes[i]] > 1)
            write_term(&w, nodes[i]);
        else
            write_formula(&w, nodes[i]);
        cup__text_add(out, "%s", after[i]);
    }
    cup__free(w.uses);
    return !out->failed;
}
