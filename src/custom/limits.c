#include "custom/limits.h"

#include <math.h>

#include "base/memory.h"

typedef enum form_kind {
    FORM_NONE,    /* anything else */
    FORM_NUMBER,  /* the same in each call */
    FORM_GIVEN,   /* parameters are in it, but neither query nor key */
    FORM_STRAIGHT /* query * q + key * k + rest */
} form_kind;

typedef struct form {
    form_kind kind;
    double query, key, rest;
} form;

typedef struct forms {
    const cup__expr_node *nodes;
    form *of;
    int query, key;
} forms;

static form sum_of(form a, form b, double sign)
{
    form y = {a.kind > b.kind ? a.kind : b.kind, a.query + sign * b.query, a.key + sign * b.key,
              a.rest + sign * b.rest};
    if (a.kind == FORM_NONE || b.kind == FORM_NONE)
        y.kind = FORM_NONE;
    return y;
}

static form times(form a, double factor)
{
    return (form){a.kind, a.query * factor, a.key * factor, a.rest * factor};
}

static form of_leaf(const forms *f, const cup__expr_node *n, const double *parameters)
{
    if (n->function == CUP__NUMBER)
        return (form){FORM_NUMBER, 0, 0, n->value};
    if (n->function == CUP__PARAMETER)
        return (form){FORM_GIVEN, 0, 0, parameters ? parameters[n->in[0]] : 0};
    if (n->in[0] != f->query && n->in[0] != f->key)
        return (form){.kind = FORM_NONE};
    return (form){FORM_STRAIGHT, n->in[0] == f->query, n->in[0] == f->key, 0};
}

/* What a node is, by those before it. Which kind it is does not depend on the parameters. */
static form form_of(const forms *f, const cup__expr_node *n, const double *parameters)
{
    form x[3] = {{FORM_NUMBER, 0, 0, 0}, {FORM_NUMBER, 0, 0, 0}, {FORM_NUMBER, 0, 0, 0}};
    form_kind most = FORM_NUMBER;
    if (n->function <= CUP__PARAMETER)
        return of_leaf(f, n, parameters);
    for (int i = 0; i < cup__functions[n->function].arity; i++) {
        x[i] = f->of[n->in[i]];
        if (x[i].kind == FORM_NONE)
            return x[i];
        most = x[i].kind > most ? x[i].kind : most;
    }
    if (most != FORM_STRAIGHT)
        return (form){most, 0, 0,
                      cup__function_f64((cup__function)n->function, x[0].rest, x[1].rest,
                                        x[2].rest)};
    if (n->function == CUP__ADD || n->function == CUP__SUB)
        return sum_of(x[0], x[1], n->function == CUP__ADD ? 1 : -1);
    if (n->function == CUP__NEG)
        return times(x[0], -1);
    if (n->function == CUP__MUL && x[0].kind == FORM_NUMBER)
        return times(x[1], x[0].rest);
    if (n->function == CUP__MUL && x[1].kind == FORM_NUMBER)
        return times(x[0], x[1].rest);
    return (form){.kind = FORM_NONE};
}

static bool find_forms(forms *f, int count, const double *parameters, cup__error *error)
{
    f->of = cup__calloc((size_t)count + 1, sizeof *f->of);
    if (!f->of) {
        cup__fail(error, CUP_MEMORY, "out of host memory for a formula");
        return false;
    }
    for (int i = 0; i < count; i++)
        f->of[i] = form_of(f, &f->nodes[i], parameters);
    return true;
}

static bool is_distance(form x)
{
    return x.kind == FORM_STRAIGHT && x.key == -x.query && fabs(x.key) > 0 && isfinite(x.key);
}

/* Narrows the limits to where x > 0, or x >= 0; where x is no number nothing is seen if the
 * comparison must hold, and all if it must not. */
static void narrow(cup__key_limits *l, form x, bool strict, bool holds)
{
    double most = x.rest / fabs(x.key), *side = x.key > 0 ? &l->before : &l->after;
    double whole = strict ? ceil(most) - 1 : floor(most);
    if (isnan(whole))
        whole = holds ? -INFINITY : INFINITY;
    *side = whole < *side ? whole : *side;
}

/* Whether a condition that holds, or does not, is a limit; narrows `l` to it. */
static bool take(const forms *f, int node, bool holds, cup__key_limits *l)
{
    const cup__expr_node *n = &f->nodes[node];
    while (n->function == CUP__NOT) {
        n = &f->nodes[n->in[0]];
        holds = !holds;
    }
    bool is_order = n->function == CUP__LESS || n->function == CUP__LESS_EQUAL;
    bool is_equal = n->function == (holds ? CUP__EQUAL : CUP__NOT_EQUAL);
    if (!is_order && !is_equal)
        return false;
    form apart = sum_of(f->of[n->in[1]], f->of[n->in[0]], -1);
    if (is_equal) {
        if (!is_distance(apart))
            return false;
        narrow(l, apart, false, true);
        narrow(l, times(apart, -1), false, true);
        return true;
    }
    bool strict = (n->function == CUP__LESS) == holds;
    int less = n->in[!holds], more = n->in[holds];
    if (is_distance(apart)) {
        narrow(l, holds ? apart : times(apart, -1), strict, holds);
        return true;
    }
    const cup__expr_node *size = &f->nodes[less];
    form most = f->of[more];
    if (size->function != CUP__ABS || !is_distance(f->of[size->in[0]]) ||
        (most.kind != FORM_NUMBER && most.kind != FORM_GIVEN))
        return false;
    narrow(l, sum_of(most, f->of[size->in[0]], -1), strict, holds);
    narrow(l, sum_of(most, f->of[size->in[0]], 1), strict, holds);
    return true;
}

/* The parts of a condition are found from the last on, so that each is met before its own. */
static cup_status split(cup__graph *g, const forms *f, bool *is_part, int condition, int *found,
                        int most, int *count, int *rest)
{
    is_part[condition] = true;
    for (int node = condition; node >= 0; node--) {
        cup__key_limits l = {INFINITY, INFINITY};
        const cup__expr_node n = f->nodes[node];
        if (!is_part[node])
            continue;
        if (n.function == CUP__AND)
            is_part[n.in[0]] = is_part[n.in[1]] = true;
        else if (*count < most && take(f, node, true, &l))
            found[(*count)++] = node;
        else if ((*rest = *rest < 0 ? node : cup__graph_add(g, CUP__AND, node, *rest, -1)) < 0)
            return g->error->status;
    }
    return CUP_OK;
}

cup_status cup__limits_split(cup__graph *g, int condition, int query, int key, int *found,
                             int most, int *count, int *rest)
{
    /* What is left is added to the graph while this is read. */
    cup__expr_node *nodes = cup__calloc((size_t)condition + 1, sizeof *nodes);
    bool *is_part = cup__calloc((size_t)condition + 1, sizeof *is_part);
    forms f = {.nodes = nodes, .query = query, .key = key};
    cup_status status = CUP_MEMORY;
    *count = 0;
    *rest = -1;
    for (int i = 0; nodes && i <= condition; i++)
        nodes[i] = g->nodes[i];
    if (!nodes || !is_part)
        cup__fail(g->error, CUP_MEMORY, "out of host memory for a formula");
    else if (find_forms(&f, condition + 1, NULL, g->error))
        status = split(g, &f, is_part, condition, found, most, count, rest);
    cup__free(f.of);
    cup__free(is_part);
    cup__free(nodes);
    return status;
}

cup_status cup__limits_read(const cup__limit_parts *parts, int query, int key,
                            const double *parameters, cup__error *error, cup__key_limits *out)
{
    forms f = {.nodes = parts->nodes, .query = query, .key = key};
    *out = (cup__key_limits){INFINITY, INFINITY};
    if (!parts->count)
        return CUP_OK;
    if (!find_forms(&f, parts->node_count, parameters, error))
        return CUP_MEMORY;
    for (int i = 0; i < parts->count; i++)
        take(&f, parts->found[i], true, out);
    cup__free(f.of);
    return CUP_OK;
}
