/* The gradient of batchnorm and groupnorm in public ops, for second derivatives. */
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/norm/channelnorm.h"

/* x as [instances, before, groups, each, after]. */
#define DIMS 5
static const int64_t together[] = {1, 3, 4}, over_channels[] = {0, 1, 4};

typedef struct planes {
    cup__channels at;
    bool constant;
    double eps;
    cup_tensor *normal, *rstd;
} planes;

static cup_tensor *as_planes(cup_context *c, const planes *p, cup_tensor *t)
{
    const cup__channels *at = &p->at;
    return cup_reshape(c, cup__widen(c, t), DIMS,
                       (int64_t[]){at->instances, at->before, at->groups, at->each, at->after});
}

/* A vector of the channels, or, where they are its own, of the groups. */
static cup_tensor *as_channels(cup_context *c, const planes *p, cup_tensor *t, bool of_groups)
{
    return cup_reshape(c, cup__widen(c, t), DIMS,
                       (int64_t[]){of_groups ? p->at.instances : 1, 1, p->at.groups,
                                   of_groups ? 1 : p->at.each, 1});
}

static cup_tensor *mean_of(cup_context *c, cup_tensor *t)
{
    return cup_mean(c, t, together, 3, true);
}

/* With the statistics made anew, as functions of x; or as the numbers that they were. */
static void normalise(cup__grad *g, planes *p)
{
    cup_context *c = g->c;
    cup_tensor *x = as_planes(c, p, g->in[0]), *mean;
    if (p->constant) {
        mean = as_channels(c, p, cup__detached(g->out[1]), true);
        p->rstd = as_channels(c, p, cup__detached(g->out[2]), true);
        p->normal = cup_mul(c, cup_sub(c, x, mean), p->rstd);
        return;
    }
    x = cup_sub(c, x, mean_of(c, x));
    cup_tensor *variance = mean_of(c, cup_mul(c, x, x));
    cup_tensor *root = cup_sqrt(c, cup_add(c, variance, cup__number(c, x, p->eps)));
    p->rstd = cup_div(c, cup__number(c, x, 1), root);
    p->normal = cup_mul(c, x, p->rstd);
}

static cup_tensor *back_to_x(cup_context *c, const planes *p, cup_tensor *d)
{
    if (p->constant)
        return cup_mul(c, d, p->rstd);
    cup_tensor *along = cup_mul(c, p->normal, mean_of(c, cup_mul(c, d, p->normal)));
    return cup_mul(c, p->rstd, cup_sub(c, cup_sub(c, d, mean_of(c, d)), along));
}

static cup_tensor *summed(cup__grad *g, int i, cup_tensor *d)
{
    cup_tensor *sum = cup_sum(g->c, d, over_channels, 3, true);
    return cup_cast(g->c, cup_reshape(g->c, sum, 1, g->in_shape[i].size), g->in_shape[i].dtype);
}

static bool is_batch(const cup__grad *g)
{
    return g->row->op == &cup__op_batchnorm;
}

static planes planes_of(const cup__grad *g)
{
    const cup__groupnorm_attributes *group = g->attributes;
    const cup__batchnorm_attributes *batch = g->attributes;
    if (is_batch(g))
        return (planes){cup__channels_of(g->in[0], batch->axis, -1), !batch->train, batch->eps,
                        NULL, NULL};
    return (planes){cup__channels_of(g->in[0], group->axis, group->groups), false, group->eps,
                    NULL, NULL};
}

/* dy where the result is above 0, as the mask's bytes say: 1, 2, 4, ... of each are bits. */
static cup_tensor *past_relu(cup__grad *g)
{
    cup_context *c = g->c;
    if (!is_batch(g) || !((const cup__batchnorm_attributes *)g->attributes)->relu)
        return g->d_out[0];
    static const uint8_t powers[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const int64_t bytes = g->out_shape[3].size[0], count = g->in[0]->count, zero = 0;
    cup_tensor *each = cup_reshape(c, cup__detached(g->out[3]), 2, (int64_t[]){bytes, 1});
    cup_tensor *set = cup_bitwise_and(c, each, cup_tensor_from(c, CUP_U8, 2, (int64_t[]){1, 8},
                                                               powers));
    set = cup_slice(c, cup_reshape(c, set, 1, (int64_t[]){8 * bytes}), &zero, 1, &count, 1);
    cup_tensor *on = cup_reshape(c, cup_cast(c, set, CUP_BOOL), g->in[0]->ndim, g->in[0]->shape);
    return cup_where(c, on, g->d_out[0], cup__number(c, g->d_out[0], 0));
}

cup_status cup__channelnorm_composed(cup__grad *g)
{
    cup_context *c = g->c;
    planes p = planes_of(g);
    if (p.constant && (g->wanted[3] || g->wanted[4]))
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "the gradient of batchnorm cannot be recorded where its running mean or "
                         "variance leads to a parameter; detach these with cup_detach");
    if (!g->in[0]->count)
        return cup__no_slopes(g); /* nothing has no mean */
    normalise(g, &p);
    cup_tensor *flowing = past_relu(g);
    if (is_batch(g) && g->wanted[5])
        g->d_in[5] = flowing;
    cup_tensor *dy = as_planes(c, &p, flowing);
    cup_tensor *d = g->in[1] ? cup_mul(c, dy, as_channels(c, &p, g->in[1], false)) : dy;
    cup_tensor *dx = cup_cast(c, back_to_x(c, &p, d), g->in_shape[0].dtype);
    g->d_in[0] = cup_reshape(c, dx, g->in_shape[0].ndim, g->in_shape[0].size);
    if (g->wanted[1])
        g->d_in[1] = summed(g, 1, cup_mul(c, dy, p.normal));
    if (g->wanted[2])
        g->d_in[2] = summed(g, 2, dy);
    return c->error.status;
}
