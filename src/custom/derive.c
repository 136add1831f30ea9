/* Derivatives by going through a formula from its results to its inputs. */
#include <string.h>

#include "base/memory.h"
#include "custom/graph.h"

typedef struct walk {
    cup__graph *graph;
    int32_t *slopes; /* of each node of the formula; -1: 0 */
} walk;

static int add_slope(walk *w, int node, int slope)
{
    if (slope < 0)
        return -1;
    if (w->slopes[node] >= 0)
        slope = cup__graph_add(w->graph, CUP__ADD, w->slopes[node], slope, -1);
    w->slopes[node] = slope;
    return slope;
}

/* The rule of a function is a text over its arguments, its value and the gradient. */
static int slope_by(walk *w, int node, int argument)
{
    const cup__expr_node *n = &w->graph->nodes[node];
    const char *rule = cup__functions[n->function].slope[argument];
    cup__scope_name names[] = {{"a", n->in[0]},
                               {"b", n->in[1]},
                               {"c", n->in[2]},
                               {"y", node},
                               {"g", w->slopes[node]}};
    return cup__parse(w->graph, &(cup__names_in_text){names, 5, 5}, rule, NULL, 0);
}

static int pass_on(walk *w, int node)
{
    int function = w->graph->nodes[node].function;
    for (int i = 0; i < cup__functions[function].arity; i++) {
        int argument = w->graph->nodes[node].in[i];
        bool number = w->graph->nodes[argument].function == CUP__NUMBER ||
                      w->graph->nodes[argument].function == CUP__PARAMETER;
        if (!*cup__functions[function].slope[i] || number)
            continue;
        if (add_slope(w, argument, slope_by(w, node, i)) < 0)
            return -1;
    }
    return 0;
}

int cup__derive(cup__graph *g, const int *results, const int *seeds, int count, int *slopes,
                int inputs)
{
    int formula = g->count, status = 0; /* nodes that the walk adds are not part of it */
    walk w = {g, cup__malloc((size_t)formula * sizeof *w.slopes)};
    if (!w.slopes) {
        cup__fail(g->error, CUP_MEMORY, "out of host memory for a derivative");
        return -1;
    }
    memset(w.slopes, 0xff, (size_t)formula * sizeof *w.slopes);
    for (int j = 0; j < count && status >= 0; j++)
        if (seeds[j] >= 0)
            status = add_slope(&w, results[j], seeds[j]);
    for (int node = formula; node-- > 0 && status >= 0;)
        if (w.slopes[node] >= 0)
            status = pass_on(&w, node);
    for (int i = 0; i < inputs; i++)
        slopes[i] = -1;
    for (int node = 0; node < formula && status >= 0; node++)
        if (g->nodes[node].function == CUP__INPUT && g->nodes[node].in[0] < inputs)
            slopes[g->nodes[node].in[0]] = w.slopes[node];
    cup__free(w.slopes);
    return status < 0 ? -1 : 0;
}
