/* Gradients of formulas in public ops, for second derivatives: the nodes of a derivative, one call
 * each, on tensors that broadcast. */
#include "base/memory.h"
#include "cupola/ops.h"
#include "custom/program.h"

static cup_tensor *truth(cup_context *c, cup_tensor *condition, cup_dtype dtype)
{
    return condition ? cup_cast(c, condition, dtype) : NULL;
}

static cup_tensor *rounded(cup_context *c, cup_tensor *t, cup_dtype dtype)
{
    return t ? cup_cast(c, cup_cast(c, t, dtype), t->dtype) : NULL;
}

static cup_tensor *is_some(cup_context *c, cup_tensor *t)
{
    return cup_not_equal(c, t, cup__number(c, t, 0));
}

/* Comparisons and what is made of them: 1 or 0. */
static cup_tensor *condition_of(cup_context *c, int function, cup_tensor *const *a, cup_dtype dtype)
{
    switch (function) {
    case CUP__EQUAL:
        return truth(c, cup_equal(c, a[0], a[1]), dtype);
    case CUP__NOT_EQUAL:
        return truth(c, cup_not_equal(c, a[0], a[1]), dtype);
    case CUP__LESS:
        return truth(c, cup_less(c, a[0], a[1]), dtype);
    case CUP__LESS_EQUAL:
        return truth(c, cup_less_equal(c, a[0], a[1]), dtype);
    case CUP__AND:
        return cup_mul(c, truth(c, is_some(c, a[0]), dtype), truth(c, is_some(c, a[1]), dtype));
    case CUP__OR:
        return cup_maximum(c, truth(c, is_some(c, a[0]), dtype), truth(c, is_some(c, a[1]), dtype));
    default: /* NOT */
        return truth(c, cup_equal(c, a[0], cup__number(c, a[0], 0)), dtype);
    }
}

static cup_tensor *of_two(cup_context *c, int function, cup_tensor *const *a)
{
    switch (function) {
    case CUP__ADD:
        return cup_add(c, a[0], a[1]);
    case CUP__SUB:
        return cup_sub(c, a[0], a[1]);
    case CUP__MUL:
        return cup_mul(c, a[0], a[1]);
    case CUP__DIV:
        return cup_div(c, a[0], a[1]);
    case CUP__POW:
        return cup_pow(c, a[0], a[1]);
    case CUP__MIN:
        return cup_minimum(c, a[0], a[1]);
    default: /* MAX */
        return cup_maximum(c, a[0], a[1]);
    }
}

static cup_tensor *normal_below(cup_context *c, cup_tensor *x)
{
    cup_tensor *erf = cup_erf(c, cup_scale(c, x, 0.70710678118654752440));
    return cup_scale(c, cup_add(c, erf, cup__number(c, x, 1)), 0.5);
}

static cup_tensor *of_one(cup_context *c, int function, cup_tensor *x)
{
    static cup_tensor *(*const ops[CUP__FUNCTIONS])(cup_context *c, cup_tensor *x) = {
        [CUP__NEG] = cup_neg,         [CUP__ABS] = cup_abs,         [CUP__SIGN] = cup_sign,
        [CUP__FLOOR] = cup_floor,     [CUP__SQRT] = cup_sqrt,       [CUP__RSQRT] = cup_rsqrt,
        [CUP__EXP] = cup_exp,         [CUP__EXPM1] = cup_expm1,     [CUP__LOG] = cup_log,
        [CUP__LOG1P] = cup_log1p,     [CUP__SIN] = cup_sin,         [CUP__COS] = cup_cos,
        [CUP__TANH] = cup_tanh,       [CUP__SIGMOID] = cup_sigmoid, [CUP__ERF] = cup_erf,
        [CUP__SOFTPLUS] = cup_softplus, [CUP__NORMAL_CDF] = normal_below,
    };
    if (function == CUP__TO_BF16)
        return rounded(c, x, CUP_BF16);
    if (function == CUP__TO_F16)
        return rounded(c, x, CUP_F16);
    return function == CUP__TO_F32 ? rounded(c, x, CUP_F32) : ops[function](c, x);
}

static cup_tensor *value_of(const cup__slopes_call *s, const cup__expr_node *n,
                            cup_tensor *const *values)
{
    cup_context *c = s->c;
    cup_tensor *a[3] = {NULL};
    for (int i = 0; i < cup__functions[n->function].arity; i++)
        a[i] = values[n->in[i]];
    switch (n->function) {
    case CUP__NUMBER:
        return cup__full(c, &(cup__shape){.dtype = s->dtype}, n->value);
    case CUP__PARAMETER:
        return cup__full(c, &(cup__shape){.dtype = s->dtype}, s->parameters[n->in[0]]);
    case CUP__INPUT:
        return cup_cast(c, s->source[n->in[0]], s->dtype);
    case CUP__WHERE:
        return cup_where(c, is_some(c, a[0]), a[1], a[2]);
    default:
        break;
    }
    if (cup__is_condition(n->function))
        return condition_of(c, n->function, a, s->dtype);
    return cup__functions[n->function].arity == 2 ? of_two(c, n->function, a)
                                                  : of_one(c, n->function, a[0]);
}

/* The values of all nodes that `slope` is made of. */
static cup_status evaluate(const cup__slopes_call *s, int slope, cup_tensor **values)
{
    const cup__graph *g = s->graph;
    bool *needed = cup__calloc((size_t)slope + 1, sizeof *needed);
    if (!needed)
        return cup__fail(&s->c->error, CUP_MEMORY, "out of host memory for a derivative");
    needed[slope] = true;
    for (int node = slope; node >= 0; node--)
        for (int i = 0; needed[node] && i < cup__functions[g->nodes[node].function].arity; i++)
            needed[g->nodes[node].in[i]] = true;
    for (int node = 0; node <= slope && s->c->error.status == CUP_OK; node++)
        if (needed[node] && !values[node])
            values[node] = value_of(s, &g->nodes[node], values);
    cup__free(needed);
    return s->c->error.status;
}

cup_status cup__slopes_compose(const cup__slopes_call *s, cup__grad *g, const int *slopes)
{
    cup_context *c = g->c;
    cup_tensor **values = cup__calloc((size_t)s->graph->count, sizeof *values);
    if (!values)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a derivative");
    for (int i = 0; i < g->in_count; i++) {
        const cup__shape *shape = &g->in_shape[i];
        if (!g->wanted[i] || slopes[i] < 0 || evaluate(s, slopes[i], values) != CUP_OK)
            continue;
        cup_tensor *d = cup_broadcast(c, values[slopes[i]], s->full.ndim, s->full.size);
        g->d_in[i] = cup_cast(c, cup__sum_to(c, d, shape), shape->dtype);
    }
    cup__free(values);
    return c->error.status;
}
