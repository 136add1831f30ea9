/* The gradient of the four layer norms in public ops, for second derivatives. */
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"

/* Of x, with the statistics made anew, as functions of it. */
typedef struct row_norm {
    cup_tensor *normal, *rstd;
    int64_t axis;
} row_norm;

static cup_tensor *mean_of(cup_context *c, const row_norm *n, cup_tensor *t)
{
    return cup_mean(c, t, &n->axis, 1, true);
}

static row_norm normalise(cup_context *c, cup_tensor *x, bool centred, double eps)
{
    row_norm n = {.axis = x ? x->ndim - 1 : 0};
    if (centred)
        x = cup_sub(c, x, mean_of(c, &n, x));
    cup_tensor *variance = mean_of(c, &n, cup_mul(c, x, x));
    cup_tensor *root = cup_sqrt(c, cup_add(c, variance, cup__number(c, x, eps)));
    n.rstd = cup_div(c, cup__number(c, x, 1), root);
    n.normal = cup_mul(c, x, n.rstd);
    return n;
}

static cup_tensor *back_to_x(cup_context *c, const row_norm *n, cup_tensor *d, bool centred)
{
    cup_tensor *along = cup_mul(c, n->normal, mean_of(c, n, cup_mul(c, d, n->normal)));
    cup_tensor *across = centred ? cup_sub(c, d, mean_of(c, n, d)) : d;
    return cup_mul(c, n->rstd, cup_sub(c, across, along));
}

static cup_tensor *summed(cup__grad *g, int i, cup_tensor *d)
{
    return cup_cast(g->c, cup__sum_to(g->c, d, &g->in_shape[i]), g->in_shape[i].dtype);
}

cup_status cup__layernorm_composed(cup__grad *g)
{
    cup_context *c = g->c;
    int kind = g->row->op->kind;
    bool centred = kind & CUP__LAYERNORM_MEAN, add = kind & CUP__LAYERNORM_ADD;
    int gamma = add ? 2 : 1, beta = gamma + 1;
    /* All four have eps alone for attributes. */
    double eps = ((const cup__layernorm_attributes *)g->attributes)->eps;
    if (!g->in_shape[0].size[g->in_shape[0].ndim - 1])
        return cup__no_slopes(g); /* rows of nothing have no mean */
    cup_tensor *dy = cup__widen(c, g->d_out[0]), *dx = add ? g->d_out[1] : NULL;
    if (dy) {
        row_norm n = normalise(c, cup__widen(c, add ? g->out[1] : g->in[0]), centred, eps);
        cup_tensor *d = g->in[gamma] ? cup_mul(c, dy, cup__widen(c, g->in[gamma])) : dy;
        cup_tensor *back = cup_cast(c, back_to_x(c, &n, d, centred), g->in_shape[0].dtype);
        dx = dx ? cup_add(c, dx, back) : back;
        if (g->wanted[gamma])
            g->d_in[gamma] = summed(g, gamma, cup_mul(c, dy, n.normal));
        if (centred && g->wanted[beta])
            g->d_in[beta] = summed(g, beta, dy);
    }
    for (int i = 0; i <= add; i++)
        g->d_in[i] = dx;
    return c->error.status;
}
