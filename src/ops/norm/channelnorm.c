#include "ops/norm/channelnorm.h"

#include <math.h>

#include "dispatch/attributes.h"

cup__channels cup__channels_of(const cup_tensor *x, int axis, int groups)
{
    int at = axis < 0 ? axis + x->ndim : axis, first = groups < 0 ? 0 : 1;
    cup__channels c = {.instances = first ? x->shape[0] : 1, .before = 1, .after = 1,
                       .channels = x->shape[at]};
    for (int d = first; d < at; d++)
        c.before *= x->shape[d];
    for (int d = at + 1; d < x->ndim; d++)
        c.after *= x->shape[d];
    c.groups = groups > 0 ? groups : c.channels;
    c.each = c.groups ? c.channels / c.groups : 0;
    c.count = c.before * c.each * c.after;
    return c;
}

cup__channelnorm cup__channelnorm_of(const cup__call *call)
{
    cup__channelnorm n = {.x = call->in[0], .gamma = call->in[1], .beta = call->in[2],
                          .y = call->out[0], .batch = call->op == &cup__op_batchnorm};
    if (n.batch) {
        const cup__batchnorm_attributes *a = call->attributes;
        n.running_mean = call->in[3];
        n.running_var = call->in[4];
        n.residual = call->in[5];
        n.relu = a->relu;
        n.eps = a->eps;
        n.momentum = a->momentum;
        n.constant = !a->train;
        n.at = cup__channels_of(n.x, a->axis, -1);
    } else {
        const cup__groupnorm_attributes *a = call->attributes;
        n.eps = a->eps;
        n.at = cup__channels_of(n.x, a->axis, a->groups);
    }
    if (call->out_count > 1) {
        n.mean = call->out[1];
        n.rstd = call->out[2];
    }
    if (n.relu && call->out_count > 3)
        n.mask = call->out[3];
    return n;
}

static cup_status check_vector(cup__call *call, int i, int64_t channels, cup_dtype other,
                               const char *name)
{
    const cup_tensor *t = call->in[i];
    cup_dtype dtype = call->in[0]->dtype;
    if (!t)
        return CUP_OK;
    if (t->dtype != other && (t->dtype != CUP_F32 || dtype == CUP_F64))
        return cup__call_fail(call, CUP_DTYPE, "%s must have the dtype %s", name,
                              dtype == CUP_F64 ? "f64" : other == CUP_F32 ? "f32"
                                                       : "of the first input or f32");
    if (t->ndim != 1 || t->shape[0] != channels)
        return cup__call_fail(call, CUP_SHAPE,
                              "%s must have one dimension of size %lld, one element for each "
                              "channel",
                              name, (long long)channels);
    return CUP_OK;
}

static cup_status check_residual(cup__call *call)
{
    cup__shape x = cup__shape_of(call->in[0]);
    if (!call->in[5])
        return CUP_OK;
    CUP_TRY(cup__need_same_dtype(call, 0, 5));
    cup__shape shape = cup__shape_of(call->in[5]);
    if (!cup__shape_equal(&shape, &x))
        return cup__call_fail(call, CUP_SHAPE,
                              "the residual must have the shape of the first input");
    return CUP_OK;
}

static cup_status check_batchnorm(cup__call *call, int axis)
{
    const cup__batchnorm_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    cup_dtype statistic = x->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    CUP_TRY(check_vector(call, 3, x->shape[axis], statistic, "the running mean"));
    CUP_TRY(check_vector(call, 4, x->shape[axis], statistic, "the running variance"));
    if (!call->in[3] != !call->in[4] || (!a->train && !call->in[3]))
        return cup__call_fail(call, CUP_ARGUMENT, "%s",
                              a->train ? "the running mean and variance come together"
                                       : "outside training it needs a running mean and variance");
    if (a->train && x->count && x->count == x->shape[axis])
        return cup__call_fail(call, CUP_SHAPE, "in training a channel must have more than one "
                                               "element, or its variance means nothing");
    if (!(a->momentum >= 0 && a->momentum <= 1))
        return cup__call_fail(call, CUP_ARGUMENT, "momentum must be from 0 to 1");
    call->result[1] = call->result[2] = (cup__shape){statistic, 1, {x->shape[axis]}};
    call->result[3] = (cup__shape){CUP_U8, 1, {a->relu ? (x->count + 7) / 8 : 0}};
    return check_residual(call);
}

static cup_status check_groupnorm(cup__call *call, int axis)
{
    const cup__groupnorm_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    if (axis != 1 && axis != x->ndim - 1)
        return cup__call_fail(call, CUP_SHAPE, "the axis of the channels must be 1 or the last");
    if (a->groups < 0 || (a->groups > 0 && x->shape[axis] % a->groups))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "%d groups do not divide %lld channels; 0 makes each channel a group",
                              a->groups, (long long)x->shape[axis]);
    int64_t groups = a->groups ? a->groups : x->shape[axis];
    call->result[1] = call->result[2] =
        (cup__shape){x->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 2, {x->shape[0], groups}};
    return CUP_OK;
}

cup_status cup__channelnorm_infer(cup__call *call)
{
    bool batch = call->op == &cup__op_batchnorm;
    const cup_tensor *x = call->in[0], *gamma = call->in[1], *beta = call->in[2];
    int axis = batch ? ((const cup__batchnorm_attributes *)call->attributes)->axis
                     : ((const cup__groupnorm_attributes *)call->attributes)->axis;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, batch ? 1 : 2, CUP_MAX_DIMS));
    CUP_TRY(cup__need_eps(call, batch ? ((const cup__batchnorm_attributes *)call->attributes)->eps
                                : ((const cup__groupnorm_attributes *)call->attributes)->eps));
    CUP_TRY(cup__need_axis(call, 0, axis, &axis));
    CUP_TRY(check_vector(call, 1, x->shape[axis], x->dtype, "gamma"));
    CUP_TRY(check_vector(call, 2, x->shape[axis], x->dtype, "beta"));
    if (gamma && beta && gamma->dtype != beta->dtype)
        return cup__call_fail(call, CUP_DTYPE, "gamma and beta must have one dtype");
    call->result[0] = cup__shape_of(x);
    return batch ? check_batchnorm(call, axis) : check_groupnorm(call, axis);
}

static double at(const cup_tensor *t, int64_t index, double missing)
{
    return t ? cup__load(t, cup__offset_of(t, index)) : missing;
}

/* The place in x of element i of a group: [before, each, after] inside its instance. */
static int64_t place_of(const cup__channels *c, int64_t instance, int64_t group, int64_t i)
{
    int64_t inner = c->each * c->after, before = i / inner, rest = i % inner;
    int64_t row = (instance * c->before + before) * c->channels + group * c->each;
    return row * c->after + rest;
}

/* What momentum leaves of the running statistics, and what it adds. */
static void run_along(const cup__channelnorm *n, int64_t channel, double mean, double var)
{
    double m = n->momentum, count = (double)n->at.count;
    double old_mean = at(n->running_mean, channel, 0), old_var = at(n->running_var, channel, 0);
    cup__store(n->running_mean, channel, old_mean + m * (mean - old_mean));
    cup__store(n->running_var, channel, old_var + m * (var * count / (count - 1) - old_var));
}

static void specify_group(const cup__channelnorm *n, int64_t instance, int64_t group)
{
    const cup__channels *c = &n->at;
    long double sum = 0, squares = 0;
    double mean, var;
    for (int64_t i = 0; i < c->count && !n->constant; i++)
        sum += at(n->x, place_of(c, instance, group, i), 0);
    /* Of nothing, the mean is 0 and so is the variance. */
    long double count = c->count ? (long double)c->count : 1;
    mean = n->constant ? at(n->running_mean, group, 0) : (double)(sum / count);
    for (int64_t i = 0; i < c->count && !n->constant; i++) {
        double d = at(n->x, place_of(c, instance, group, i), 0) - mean;
        squares += d * d;
    }
    var = n->constant ? at(n->running_var, group, 0) : (double)(squares / count);
    double rstd = 1 / sqrt(var + n->eps);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t channel = group * c->each + i / c->after % c->each;
        int64_t to = place_of(c, instance, group, i);
        double y = (at(n->x, to, 0) - mean) * rstd * at(n->gamma, channel, 1) +
                   at(n->beta, channel, 0) + at(n->residual, to, 0);
        cup__store(n->y, to, n->relu && y < 0 ? 0 : y);
    }
    if (n->running_mean && !n->constant && c->count)
        run_along(n, group, mean, var);
    if (n->mean) {
        cup__store(n->mean, instance * c->groups + group, mean);
        cup__store(n->rstd, instance * c->groups + group, rstd);
    }
}

void cup__mask_write(const cup_tensor *y, cup_tensor *mask)
{
    for (int64_t byte = 0; byte < mask->count; byte++) {
        unsigned bits = 0;
        for (int64_t i = byte * 8; i < y->count && i < byte * 8 + 8; i++)
            bits |= (cup__element(y, i) > 0 ? 1u : 0u) << i % 8;
        ((uint8_t *)mask->data)[byte] = (uint8_t)bits;
    }
}

cup_status cup__channelnorm_specification(cup__call *call)
{
    cup__channelnorm n = cup__channelnorm_of(call);
    for (int64_t i = 0; i < n.at.instances; i++)
        for (int64_t g = 0; g < n.at.groups; g++)
            specify_group(&n, i, g);
    if (n.mask)
        cup__mask_write(n.y, n.mask);
    return CUP_OK;
}

/* The gradient of fixed statistics, for those who train them all the same: the sums behind dgamma
 * and dbeta, times what the statistics are multiplied by. */
static void statistics_gradient(cup__grad *g, cup_tensor *dgamma, cup_tensor *dbeta)
{
    cup_tensor *scale = cup_cast(g->c, g->out[2], g->in_shape[3].dtype);
    cup_tensor *sums[] = {dbeta, dgamma};
    for (int i = 0; i < 2; i++) {
        cup_tensor *d = cup_mul(g->c, cup_cast(g->c, sums[i], g->in_shape[3].dtype), scale);
        if (g->in[1])
            d = cup_mul(g->c, d, cup_cast(g->c, g->in[1], g->in_shape[3].dtype));
        g->d_in[3 + i] = cup_scale(g->c, i ? cup_mul(g->c, d, scale) : d, i ? -0.5 : -1);
    }
}

/* Inputs and results stand in the same order in both ops. */
cup_status cup__channelnorm_gradient(cup__grad *g)
{
    bool batch = g->row->op == &cup__op_batchnorm, constant = false, statistics = false;
    bool relu = false, residual = batch && g->in_count > 5 && g->wanted[5];
    int axis, groups = -1;
    if (batch) {
        const cup__batchnorm_attributes *a = g->attributes;
        axis = a->axis;
        relu = a->relu;
        constant = !a->train;
        statistics = constant && (g->wanted[3] || g->wanted[4]);
    } else {
        axis = ((const cup__groupnorm_attributes *)g->attributes)->axis;
        groups = ((const cup__groupnorm_attributes *)g->attributes)->groups;
    }
    bool has_beta = g->in_shape[2].ndim == 1;
    cup_dtype dtype = g->in[1]  ? g->in[1]->dtype
                      : has_beta ? g->in_shape[2].dtype
                                 : g->in[0]->dtype;
    cup_tensor *dx = NULL, *dgamma = NULL, *dbeta = NULL, *dresidual = NULL;
    cup__channelnorm_grad(g->c, g->d_out[0], g->in[0], g->out[1], g->out[2], g->in[1],
                          relu ? g->out[3] : NULL, axis, groups, constant, dtype,
                          g->wanted[1] || statistics, g->wanted[2] || statistics, residual && relu,
                          &dx, &dgamma, &dbeta, &dresidual);
    g->d_in[0] = dx;
    if (g->wanted[1])
        g->d_in[1] = dgamma;
    if (g->wanted[2])
        g->d_in[2] = dbeta;
    if (residual)
        g->d_in[5] = relu ? dresidual : g->d_out[0];
    if (statistics)
        statistics_gradient(g, dgamma, dbeta);
    return CUP_OK;
}

const cup__impl cup__channelnorm_impls[] = {
    {.name = "channels", .place = CUP__CPU, CUP__THRESHOLDS(64, 4096),
     .refuses = cup__channelnorm_cpu_refuses,
     .run = cup__channelnorm_cpu},
    {.name = "cluster", .place = CUP__CUDA, CUP__THRESHOLDS(128, 256, 512, 1024, 4096),
     .refuses = cup__channelnorm_cluster_refuses,
     .run = cup__channelnorm_cluster},
    {.name = "channels", .place = CUP__CUDA, CUP__THRESHOLDS(32, 256, 1024),
     .refuses = cup__channelnorm_cuda_refuses,
     .run = cup__channelnorm_cuda},
    {0},
};
