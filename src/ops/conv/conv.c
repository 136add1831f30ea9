#include "ops/conv/conv.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"
#include "ops/shape/copy.h"

/* Channels of the image and of the result, and what the weight takes of the first. */
static cup_status check_channels(cup__call *call, const cup__conv_numbers *n, int64_t images,
                                 int64_t in, int64_t out, int64_t each)
{
    if (in % n->groups || out % n->groups)
        return cup__call_fail(call, CUP_SHAPE,
                              "%lld channels of x and %lld of the result do not both divide into "
                              "%lld groups",
                              (long long)in, (long long)out, (long long)n->groups);
    if (each >= 0 && each != in / n->groups)
        return cup__call_fail(call, CUP_SHAPE,
                              "x has %lld channels in each of %lld groups, and the weight "
                              "[O,C/groups,%sKH,KW] takes %lld",
                              (long long)(in / n->groups), (long long)n->groups,
                              n->dims == 2 ? "" : "KD,", (long long)each);
    if (in > INT_MAX || out > INT_MAX || images > INT_MAX)
        return cup__call_fail(call, CUP_SHAPE, "at most 2^31 - 1 images and channels are taken");
    return CUP_OK;
}

/* Whether a tensor's channels are neighbours in memory: [N,H,W,C] seen as [N,C,H,W]. Of one channel
 * only the view's stride tells, which is a whole image of [N,C,H,W]. */
static bool channels_last(const cup_tensor *t)
{
    return t->stride[1] == 1 && (t->shape[1] > 1 ? !t->contiguous : t->shape[t->ndim - 1] > 1);
}

static cup_status begin(cup__call *call, cup__conv_numbers *n)
{
    int ndim = call->op->kind < CUP__CONV3 ? 4 : 5;
    for (int i = 0; i < 2; i++) {
        if (!cup__conv_is_scaled(call))
            CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_ndim(call, i, ndim, ndim));
    }
    if (!cup__conv_is_scaled(call))
        CUP_TRY(cup__need_same_dtype(call, 0, 1));
    return cup__conv_check(call, n);
}

/* The first result; with channels that are neighbours in memory if `last`. */
static void set_result(cup__call *call, int64_t first, int64_t second, const int64_t *sides,
                       bool last)
{
    cup__shape *shape = &call->result[0];
    *shape = (cup__shape){call->in[0]->dtype, call->in[0]->ndim, {first, second}};
    for (int d = 2; d < shape->ndim; d++)
        shape->size[d] = sides[d - 2];
    call->order[0] = !last ? NULL : shape->ndim == 4 ? "0231" : "02341";
}

cup_status cup__conv_infer(cup__call *call)
{
    cup__conv_numbers n;
    CUP_TRY(begin(call, &n));
    const cup_tensor *x = call->in[0], *weight = call->in[1], *bias = cup__conv_bias(call);
    int64_t results = weight->shape[0];
    CUP_TRY(check_channels(call, &n, x->shape[0], x->shape[1], results, weight->shape[1]));
    if (bias) {
        if (!cup__conv_is_scaled(call))
            CUP_TRY(cup__need_same_dtype(call, 0, 2));
        if (bias->ndim != 1 || bias->shape[0] != results)
            return cup__call_fail(call, CUP_SHAPE, "bias must have the shape [%lld]",
                                  (long long)results);
    }
    set_result(call, x->shape[0], results, n.out, channels_last(x));
    return CUP_OK;
}

static cup_status check_dy(cup__call *call, const cup__conv_numbers *n)
{
    const int64_t *sides = call->in[0]->shape + 2, *out = n->out;
    if (!memcmp(sides, out, (size_t)n->dims * sizeof *out))
        return CUP_OK;
    if (n->dims == 2)
        return cup__call_fail(call, CUP_SHAPE, "dy must be %lld x %lld", (long long)out[0],
                              (long long)out[1]);
    return cup__call_fail(call, CUP_SHAPE, "dy must be %lld x %lld x %lld", (long long)out[0],
                          (long long)out[1], (long long)out[2]);
}

cup_status cup__conv_input_infer(cup__call *call)
{
    cup__conv_numbers n;
    CUP_TRY(begin(call, &n));
    CUP_TRY(check_dy(call, &n));
    const cup_tensor *dy = call->in[0], *weight = call->in[1];
    if (weight->shape[1] > INT_MAX / n.groups)
        return cup__call_fail(call, CUP_SHAPE, "at most 2^31 - 1 channels are taken");
    int64_t in = weight->shape[1] * n.groups;
    CUP_TRY(check_channels(call, &n, dy->shape[0], in, dy->shape[1], -1));
    if (dy->shape[1] != weight->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "dy has %lld channels, the weight makes %lld",
                              (long long)dy->shape[1], (long long)weight->shape[0]);
    set_result(call, dy->shape[0], in, n.in, channels_last(dy));
    return CUP_OK;
}

static cup_status check_sum(cup__call *call)
{
    if (!cup__conv_sum(call))
        return CUP_OK;
    CUP_TRY(cup__need_same_dtype(call, 0, 2));
    cup__shape shape = cup__shape_of(call->in[2]);
    return cup__shape_equal(&shape, &call->result[0])
               ? CUP_OK
               : cup__call_fail(call, CUP_SHAPE, "sum must have the shape of the weight");
}

cup_status cup__conv_weight_infer(cup__call *call)
{
    cup__conv_numbers n;
    CUP_TRY(begin(call, &n));
    CUP_TRY(check_dy(call, &n));
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    CUP_TRY(check_channels(call, &n, x->shape[0], x->shape[1], dy->shape[1], -1));
    if (dy->shape[0] != x->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "dy has %lld images, x has %lld",
                              (long long)dy->shape[0], (long long)x->shape[0]);
    set_result(call, dy->shape[1], x->shape[1] / n.groups, n.kernel, false);
    return check_sum(call);
}

static void take_steps(long long to[4], const cup_tensor *t)
{
    for (int i = 0; i < 4; i++)
        to[i] = t ? t->stride[i] : 0;
}

static conv_side side_of(const cup__conv_numbers *n, int d)
{
    return (conv_side){(int)n->in[d],     (int)n->out[d],      (int)n->kernel[d],
                       (int)n->stride[d], (int)n->dilation[d], (int)n->padding[d][0]};
}

static void take_scales(cup__conv *v, const cup__call *call)
{
    const cup__scaled_conv2d_attributes *a = call->attributes;
    const cup_tensor *x = call->in[2], *weight = call->in[3];
    v->fast = a->fast_accumulation;
    v->call.x_scale = x ? x->data : NULL;
    v->call.w_scale = weight ? weight->data : NULL;
    v->call.scale_step = weight && weight->count > 1 ? weight->stride[0] : 0;
}

static void take_residual(cup__conv *v, const cup__call *call, const cup_tensor *residual)
{
    v->residual = residual ? residual->data : NULL;
    for (int d = 0; d < 4 && residual; d++)
        v->residual_step[d] = residual->stride[d];
    bool weight = call->op->kind == CUP__CONV_WEIGHT;
    v->residual_group = v->call.results * v->residual_step[weight ? 0 : 1];
}

static void take_join(cup__conv *v, const cup__call *call)
{
    const cup__epilogue *e = cup__conv_follower(call);
    v->activation = e ? e->activation : 0;
    take_residual(v, call, cup__conv_residual(call));
}

cup__conv cup__conv_of(const cup__call *call)
{
    int kind = call->op->kind;
    cup__conv_numbers n = cup__conv_numbers_of(call);
    const cup_tensor *x = call->in[kind == CUP__CONV_WEIGHT], *out = call->out[0];
    const cup_tensor *other = call->in[kind != CUP__CONV_WEIGHT];
    const cup_tensor *bias = cup__conv_bias(call);
    cup__conv v = {.dtype = x->dtype,
                   .y_dtype = call->result[0].dtype,
                   .bias_dtype = bias ? bias->dtype : CUP_F32};
    conv_call *c = &v.call;
    c->x = x->data;
    c->w = other->data;
    c->bias = bias ? bias->data : NULL;
    c->bias_step = bias ? bias->stride[0] : 0;
    c->y = out ? out->data : NULL;
    take_steps(c->x_step, x);
    take_steps(c->w_step, other);
    take_steps(c->y_step, out);
    c->back = kind == CUP__CONV_INPUT;
    c->images = (int)x->shape[0];
    c->groups = (int)n.groups;
    c->channels = (int)(x->shape[1] / n.groups);
    c->results = (int)(call->result[0].size[1] / n.groups);
    if (kind == CUP__CONV_WEIGHT)
        c->results = (int)(other->shape[1] / n.groups);
    if (c->back) { /* the weight is read from its results to its channels */
        c->w_step[0] = other->stride[1];
        c->w_step[1] = other->stride[0];
    }
    c->x_group = c->channels * c->x_step[1];
    c->w_group = kind == CUP__CONV_WEIGHT ? c->results * c->w_step[1]
                 : c->back                ? c->channels * c->w_step[1]
                                          : c->results * c->w_step[0];
    c->y_group = c->results * c->y_step[kind == CUP__CONV_WEIGHT ? 0 : 1];
    if (cup__conv_is_scaled(call))
        take_scales(&v, call);
    else if (call->in_count == 4)
        take_join(&v, call);
    else
        take_residual(&v, call, cup__conv_sum(call));
    c->side[0] = side_of(&n, 0);
    c->side[1] = side_of(&n, 1);
    return v;
}

cup__conv cup__conv_group(const cup__conv *v, int group)
{
    cup__conv one = *v;
    conv_call *c = &one.call;
    int64_t size = cup_dtype_size(v->dtype), y_size = cup_dtype_size(v->y_dtype);
    int64_t first = (int64_t)group * c->results;
    c->groups = 1;
    c->x = (const char *)c->x + group * c->x_group * size;
    c->w = (const char *)c->w + group * c->w_group * size;
    c->y = (char *)c->y + group * c->y_group * y_size;
    if (c->bias)
        c->bias = (const char *)c->bias + first * c->bias_step * cup_dtype_size(v->bias_dtype);
    if (c->w_scale)
        c->w_scale += first * c->scale_step;
    if (one.residual)
        one.residual = (const char *)v->residual + group * v->residual_group * y_size;
    return one;
}

void cup__conv_weight_back(cup__grad *g, cup_tensor *dy, cup_tensor *x, int dims)
{
    int id = dims == 2 ? CUP__OP_conv2d_weight_grad : CUP__OP_conv3d_weight_grad;
    cup_tensor *sum = g->sum ? g->sum[1] : NULL, *in[] = {dy, x, sum}, *out[] = {sum};
    cup__conv2d_weight_grad_attributes a = {.kernel_count = dims}; /* as those of conv3d */
    memcpy(&a, g->attributes, offsetof(cup__conv2d_attributes, groups) + sizeof a.groups);
    memcpy(a.kernel, &g->in_shape[1].size[2], (size_t)dims * sizeof *a.kernel);
    cup_tensor *d = cup__op_call(g->c, &cup__rows[id], in, 3, &a, out);
    if (!sum)
        g->d_in[1] = d;
}

static bool lies_alike(const cup_tensor *a, const cup_tensor *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->stride[d] != b->stride[d])
            return false;
    return true;
}

cup_status cup__conv_hand_over(cup__call *call, cup_tensor *made)
{
    cup_context *c = call->c;
    cup_tensor *sum = cup__conv_sum(call), *even = made;
    if (!sum)
        return cup__copy_to(c, call->out[0], made);
    if (!lies_alike(made, sum)) /* which a copy turns faster than an addition would */
        even = cup_copy(c, made);
    if (even)
        cup__call_into(c, CUP__OP_add, (cup_tensor *[]){sum, even}, 2, NULL, call->out[0]);
    if (even != made)
        cup_tensor_free(even);
    return c->error.status;
}

cup_status cup__conv_weight_apart(cup__call *call, cup_status (*run)(cup__call *call))
{
    cup_tensor *out = call->out[0];
    int count = call->in_count;
    if (!cup__conv_sum(call))
        return run(call);
    cup_tensor *made = cup__tensor_make(call->c, &call->result[0], "weight gradient");
    if (!made)
        return call->c->error.status;
    call->in_count = 2;
    call->out[0] = made;
    cup_status status = run(call);
    call->in_count = count;
    call->out[0] = out;
    if (status == CUP_OK)
        status = cup__conv_hand_over(call, made);
    cup_tensor_free(made);
    return status;
}

void cup__conv_cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    const cup__conv_numbers n = cup__conv_numbers_of(call);
    const cup_tensor *weight = cup__conv_part(call->op) == CUP__CONV_WEIGHT ? y : b;
    *flops = 2 * (double)a->shape[0] * (double)weight->count;
    for (int d = 0; d < n.dims; d++)
        *flops *= (double)n.out[d];
    *bytes = (double)((a->count + b->count) * cup_dtype_size(a->dtype) +
                      (cup__conv_sum(call) ? 2 : 1) * y->count * cup_dtype_size(y->dtype));
}
