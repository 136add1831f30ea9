#include "custom/program.h"

#include <limits.h>
#include <string.h>

#include "base/memory.h"

/* What of a graph the results need, in the order it stands there. */
static int mark_needed(const cup__formula *f, int32_t *number)
{
    const cup__graph *g = f->graph;
    int count = 0;
    memset(number, 0, (size_t)g->count * sizeof *number);
    for (int j = 0; j < f->results; j++)
        number[f->result[j].node] = 1;
    for (int node = g->count; node-- > 0;) {
        const cup__expr_node *n = &g->nodes[node];
        for (int i = 0; number[node] && i < cup__functions[n->function].arity; i++)
            number[n->in[i]] = 1;
    }
    for (int node = 0; node < g->count; node++)
        number[node] = number[node] ? count++ : -1;
    return count;
}

static void copy_nodes(cup__program *p, const cup__formula *f, const int32_t *number)
{
    for (int node = 0; node < f->graph->count; node++) {
        if (number[node] < 0)
            continue;
        cup__expr_node n = f->graph->nodes[node];
        for (int i = 0; i < cup__functions[n.function].arity; i++)
            n.in[i] = number[n.in[i]];
        p->nodes[number[node]] = n;
        if (n.function == CUP__INPUT)
            p->used[p->used_count++] = n.in[0];
    }
    for (int j = 0; j < f->results; j++)
        p->result[j].node = number[f->result[j].node];
}

/* Nodes whose values are no longer needed give their place to later ones. */
static bool give_slots(cup__program *p)
{
    int32_t *last = cup__calloc((size_t)p->count, sizeof *last);
    int32_t *spare = cup__calloc((size_t)p->count, sizeof *spare);
    p->slot = cup__calloc((size_t)p->count, sizeof *p->slot);
    int spares = 0;
    for (int node = 0; last && node < p->count; node++)
        for (int i = 0; i < cup__functions[p->nodes[node].function].arity; i++)
            last[p->nodes[node].in[i]] = node;
    for (int j = 0; last && j < p->results; j++)
        last[p->result[j].node] = p->count;
    for (int node = 0; last && spare && p->slot && node < p->count; node++) {
        const cup__expr_node *n = &p->nodes[node];
        bool constant = n->function == CUP__NUMBER || n->function == CUP__PARAMETER;
        p->slot[node] = constant || !spares ? p->slots++ : spare[--spares];
        for (int i = 0; i < cup__functions[n->function].arity; i++) {
            const cup__expr_node *a = &p->nodes[n->in[i]];
            bool again = (i > 0 && n->in[i] == n->in[0]) || (i > 1 && n->in[i] == n->in[1]);
            if (last[n->in[i]] == node && !again && a->function != CUP__NUMBER &&
                a->function != CUP__PARAMETER)
                spare[spares++] = p->slot[n->in[i]];
        }
    }
    bool good = last && spare && p->slot;
    cup__free(last);
    cup__free(spare);
    return good;
}

static void program_free(cup__program *p)
{
    cup__program_kernels_free(p->kernels);
    cup__slopes_free(p->slopes);
    cup__free(p->nodes);
    cup__free(p->slot);
    cup__free(p->source);
    cup__free(p);
}

static void programs_free(void *first)
{
    for (cup__program *p = first; p;) {
        cup__program *next = p->next;
        program_free(p);
        p = next;
    }
}

static bool equal(const cup__program *a, const cup__program *b)
{
    return a->count == b->count && a->inputs == b->inputs && a->parameters == b->parameters &&
           a->results == b->results && a->folded == b->folded && a->keep == b->keep &&
           a->derivative == b->derivative &&
           a->axis_count == b->axis_count &&
           !memcmp(a->axes, b->axes, (size_t)a->axis_count * sizeof *a->axes) &&
           !memcmp(a->result, b->result, (size_t)a->results * sizeof *a->result) &&
           !memcmp(a->nodes, b->nodes, (size_t)a->count * sizeof *a->nodes);
}

static void make_op(cup__program *p)
{
    p->op = (cup__op){
        .infer = cup__expr_infer,
        .specification = cup__expr_specification,
        .gradient = cup__expr_gradient,
        .composed = cup__expr_composed,
        .impls = cup__expr_impls,
    };
    p->row = (cup__row){
        .name = "formula",
        .op = &p->op,
        .inputs = "inputs",
        .attributes_text = "parameters",
        .results = "results",
        .words = "a formula",
        .in_least = p->inputs,
        .in_most = p->inputs,
        .visible = p->results,
        .results_count = p->results,
        .attributes_size = sizeof(cup__expr_attributes),
    };
}

static cup__program *program_new(const cup__formula *f)
{
    cup__program *p = cup__calloc(1, sizeof *p);
    int32_t *number = cup__malloc((size_t)f->graph->count * sizeof *number);
    bool good = p && number;
    if (good) {
        p->inputs = f->inputs;
        p->parameters = f->parameters;
        p->results = f->results;
        p->folded = f->folded;
        p->keep = f->keep;
        p->derivative = f->derivative;
        p->axis_count = f->axis_count;
        memcpy(p->axes, f->axes, sizeof p->axes);
        memcpy(p->result, f->result, sizeof p->result);
        p->count = mark_needed(f, number);
        p->nodes = cup__calloc((size_t)p->count, sizeof *p->nodes);
        good = p->nodes != NULL;
    }
    if (good)
        copy_nodes(p, f, number);
    cup__free(number);
    if (good)
        return p;
    if (p)
        program_free(p);
    return NULL;
}

cup__program *cup__program_get(cup_context *c, const cup__formula *formula)
{
    cup__program *p = program_new(formula);
    if (!p) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a formula");
        return NULL;
    }
    cup__slot *slot = &c->slots[CUP__SLOT_PROGRAMS];
    for (cup__program *known = slot->kept; known; known = known->next)
        if (equal(known, p)) {
            program_free(p);
            return known;
        }
    make_op(p);
    uint32_t need = 0;
    bool good = give_slots(p);
    if (!good)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a formula");
    else
        good = cup__slopes_need(c, p, &need) == CUP_OK;
    if (!good) {
        program_free(p);
        return NULL;
    }
    p->op.saves = need;
    p->next = slot->kept;
    *slot = (cup__slot){p, programs_free};
    return p;
}
