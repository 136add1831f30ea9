#include "ops/conv/conv.h"

#include <limits.h>

#include "dispatch/attributes.h"

#define MOST_SIDE ((int64_t)1 << 29) /* of sides, kernels and padding, so that sums fit an int */

/* What the attributes say, and the sizes of all tensors. */
typedef struct numbers {
    int64_t stride[2], dilation[2], padding[2][2]; /* before and behind */
    int64_t groups, in[2], kernel[2], out[2];
    bool same;
} numbers;

static void take_pair(int64_t to[2], const int64_t *from, int count, int64_t usual)
{
    to[0] = count > 0 ? from[0] : usual;
    to[1] = count > 1 ? from[1] : to[0];
}

#define TAKE(to, a)                                                                                \
    (take_pair((to)->stride, (a)->stride, (a)->stride_count, 1),                                   \
     take_pair((to)->dilation, (a)->dilation, (a)->dilation_count, 1),                             \
     take_padding(to, (a)->padding, (a)->padding_count), (to)->same = (a)->same,                   \
     (to)->groups = (a)->groups)

static void take_padding(numbers *to, const int64_t *from, int count)
{
    for (int d = 0; d < 2; d++)
        for (int end = 0; end < 2; end++)
            to->padding[d][end] = count == 0   ? 0
                                  : count == 4 ? from[2 * d + end]
                                               : from[count == 1 ? 0 : d];
}

static void sides_of(int64_t to[2], const cup_tensor *t)
{
    to[0] = t->shape[2];
    to[1] = t->shape[3];
}

/* All but the sizes of the result of forward. */
static numbers numbers_of(const cup__call *call)
{
    const cup__conv2d_attributes *forward = call->attributes;
    const cup__conv2d_input_grad_attributes *input = call->attributes;
    const cup__conv2d_weight_grad_attributes *weight = call->attributes;
    numbers n = {0};
    if (call->op->kind == CUP__CONV_FORWARD) {
        TAKE(&n, forward);
        sides_of(n.in, call->in[0]);
        sides_of(n.kernel, call->in[1]);
    } else if (call->op->kind == CUP__CONV_INPUT) {
        TAKE(&n, input);
        n.in[0] = input->height;
        n.in[1] = input->width;
        sides_of(n.kernel, call->in[1]);
    } else {
        TAKE(&n, weight);
        sides_of(n.in, call->in[1]);
        take_pair(n.kernel, weight->kernel, weight->kernel_count, 1);
    }
    return n;
}

static cup_status check_padding_count(cup__call *call, const char *name, int count)
{
    if (count <= 2 || count == 4)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT,
                          "%s has %d numbers; give it one, one each for height and width, or four: "
                          "top, bottom, left, right",
                          name, count);
}

static cup_status check_counts(cup__call *call)
{
    const cup__conv2d_attributes *forward = call->attributes;
    const cup__conv2d_input_grad_attributes *input = call->attributes;
    const cup__conv2d_weight_grad_attributes *weight = call->attributes;
    int kind = call->op->kind;
    int padding = kind == CUP__CONV_FORWARD ? forward->padding_count
                  : kind == CUP__CONV_INPUT ? input->padding_count
                                            : weight->padding_count;
    const int counts[] = {kind == CUP__CONV_FORWARD ? forward->stride_count
                          : kind == CUP__CONV_INPUT ? input->stride_count
                                                    : weight->stride_count,
                          kind == CUP__CONV_FORWARD ? forward->dilation_count
                          : kind == CUP__CONV_INPUT ? input->dilation_count
                                                    : weight->dilation_count};
    for (int i = 0; i < 2; i++)
        if (counts[i] > 2)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "%s has %d numbers; give it one, or one each for height and "
                                  "width",
                                  i ? "dilation" : "stride", counts[i]);
    return check_padding_count(call, "padding", padding);
}

static cup_status check_side(cup__call *call, const numbers *n, int d)
{
    const int64_t *pad = n->padding[d];
    const char *side = d ? "width" : "height";
    if (n->stride[d] < 1 || n->dilation[d] < 1 || n->stride[d] > MOST_SIDE ||
        n->dilation[d] > MOST_SIDE)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "stride %lld and dilation %lld along the %s must be at least 1 and "
                              "at most 2^29",
                              (long long)n->stride[d], (long long)n->dilation[d], side);
    if (pad[0] < 0 || pad[1] < 0 || pad[0] > MOST_SIDE || pad[1] > MOST_SIDE)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "a padding of %lld and %lld along the %s is not from 0 to 2^29",
                              (long long)pad[0], (long long)pad[1], side);
    if (n->kernel[d] < 1)
        return cup__call_fail(call, CUP_SHAPE, "a kernel must have a %s of at least 1", side);
    if (n->in[d] < 0 || n->in[d] > MOST_SIDE || n->kernel[d] > MOST_SIDE ||
        n->kernel[d] - 1 > (MOST_SIDE - 1) / n->dilation[d])
        return cup__call_fail(call, CUP_SHAPE,
                              "the image, and the kernel with its dilation, may have a %s of at "
                              "most 2^29",
                              side);
    return CUP_OK;
}

/* Sets what "same" leaves open, and the size of the result of forward. */
static cup_status finish_side(cup__call *call, numbers *n, int d)
{
    int64_t reach = (n->kernel[d] - 1) * n->dilation[d] + 1, stride = n->stride[d];
    int64_t *pad = n->padding[d];
    if (n->same) {
        int64_t out = (n->in[d] + stride - 1) / stride;
        int64_t missing = out ? (out - 1) * stride + reach - n->in[d] : 0;
        pad[0] = missing > 0 ? missing / 2 : 0;
        pad[1] = missing > 0 ? missing - pad[0] : 0;
    }
    int64_t room = n->in[d] + pad[0] + pad[1] - reach;
    if (room < 0)
        return cup__call_fail(call, CUP_SHAPE,
                              "the result would have no %s: a kernel of %lld with dilation %lld "
                              "reaches over %lld, the image with its padding has %lld; pad more, "
                              "or take a smaller kernel",
                              d ? "width" : "height", (long long)n->kernel[d],
                              (long long)n->dilation[d], (long long)reach,
                              (long long)(room + reach));
    n->out[d] = room / stride + 1;
    return CUP_OK;
}

static cup_status check_numbers(cup__call *call, numbers *n)
{
    CUP_TRY(check_counts(call));
    *n = numbers_of(call);
    for (int d = 0; d < 2; d++) {
        if (n->same && (n->padding[d][0] || n->padding[d][1]))
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "padding is given and `same` too; give one of them");
        CUP_TRY(check_side(call, n, d));
        CUP_TRY(finish_side(call, n, d));
    }
    if (n->groups < 1)
        return cup__call_fail(call, CUP_ARGUMENT, "groups must be at least 1, not %lld",
                              (long long)n->groups);
    return CUP_OK;
}

/* Channels of the image and of the result, and what the weight takes of the first. */
static cup_status check_channels(cup__call *call, const numbers *n, int64_t images, int64_t in,
                                 int64_t out, int64_t each)
{
    if (in % n->groups || out % n->groups)
        return cup__call_fail(call, CUP_SHAPE,
                              "%lld channels of x and %lld of the result do not both divide into "
                              "%lld groups",
                              (long long)in, (long long)out, (long long)n->groups);
    if (each >= 0 && each != in / n->groups)
        return cup__call_fail(call, CUP_SHAPE,
                              "x has %lld channels in each of %lld groups, and the weight "
                              "[O,C/groups,KH,KW] takes %lld",
                              (long long)(in / n->groups), (long long)n->groups, (long long)each);
    if (in > INT_MAX || out > INT_MAX || images > INT_MAX)
        return cup__call_fail(call, CUP_SHAPE, "at most 2^31 - 1 images and channels are taken");
    return CUP_OK;
}

/* Whether a tensor's channels are neighbours in memory: [N,H,W,C] seen as [N,C,H,W]. */
static bool channels_last(const cup_tensor *t)
{
    return !t->contiguous && t->shape[1] > 1 && t->stride[1] == 1;
}

static cup_status begin(cup__call *call, numbers *n)
{
    for (int i = 0; i < 2; i++) {
        CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_ndim(call, i, 4, 4));
    }
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    return check_numbers(call, n);
}

cup_status cup__conv_infer(cup__call *call)
{
    numbers n;
    CUP_TRY(begin(call, &n));
    const cup_tensor *x = call->in[0], *weight = call->in[1], *bias = NULL;
    if (call->in_count > 2)
        bias = call->in[2];
    int64_t results = weight->shape[0];
    CUP_TRY(check_channels(call, &n, x->shape[0], x->shape[1], results, weight->shape[1]));
    if (bias) {
        CUP_TRY(cup__need_same_dtype(call, 0, 2));
        if (bias->ndim != 1 || bias->shape[0] != results)
            return cup__call_fail(call, CUP_SHAPE, "bias must have the shape [%lld]",
                                  (long long)results);
    }
    call->result[0] = (cup__shape){x->dtype, 4, {x->shape[0], results, n.out[0], n.out[1]}};
    call->order[0] = channels_last(x) ? "0231" : NULL;
    return CUP_OK;
}

static cup_status check_dy(cup__call *call, const numbers *n)
{
    const cup_tensor *dy = call->in[0];
    if (dy->shape[2] != n->out[0] || dy->shape[3] != n->out[1])
        return cup__call_fail(call, CUP_SHAPE, "dy must be %lld x %lld", (long long)n->out[0],
                              (long long)n->out[1]);
    return CUP_OK;
}

cup_status cup__conv_input_infer(cup__call *call)
{
    numbers n;
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
    call->result[0] = (cup__shape){dy->dtype, 4, {dy->shape[0], in, n.in[0], n.in[1]}};
    call->order[0] = channels_last(dy) ? "0231" : NULL;
    return CUP_OK;
}

cup_status cup__conv_weight_infer(cup__call *call)
{
    numbers n;
    CUP_TRY(begin(call, &n));
    CUP_TRY(check_dy(call, &n));
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    CUP_TRY(check_channels(call, &n, x->shape[0], x->shape[1], dy->shape[1], -1));
    if (dy->shape[0] != x->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "dy has %lld images, x has %lld",
                              (long long)dy->shape[0], (long long)x->shape[0]);
    call->result[0] = (cup__shape){
        x->dtype, 4, {dy->shape[1], x->shape[1] / n.groups, n.kernel[0], n.kernel[1]}};
    return CUP_OK;
}

static void take_steps(long long to[4], const cup_tensor *t)
{
    for (int i = 0; i < 4; i++)
        to[i] = t ? t->stride[i] : 0;
}

static conv_side side_of(const numbers *n, int d)
{
    return (conv_side){(int)n->in[d],     (int)n->out[d],      (int)n->kernel[d],
                       (int)n->stride[d], (int)n->dilation[d], (int)n->padding[d][0]};
}

cup__conv cup__conv_of(const cup__call *call)
{
    int kind = call->op->kind;
    numbers n = numbers_of(call);
    for (int d = 0; d < 2; d++)
        finish_side((cup__call *)(uintptr_t)call, &n, d); /* inference found it good */
    const cup_tensor *x = call->in[kind == CUP__CONV_WEIGHT], *out = call->out[0];
    const cup_tensor *other = call->in[kind != CUP__CONV_WEIGHT];
    const cup_tensor *bias = call->in_count > 2 ? call->in[2] : NULL;
    cup__conv v = {.dtype = x->dtype};
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
    c->side[0] = side_of(&n, 0);
    c->side[1] = side_of(&n, 1);
    return v;
}

void cup__conv_cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[0], *w = call->in[1], *y = call->out[0];
    const conv_call c = cup__conv_of(call).call;
    double places = (double)c.images * c.side[0].out * c.side[1].out;
    *flops = 2 * places * c.side[0].taps * c.side[1].taps * c.channels * c.results * c.groups;
    *bytes = (double)((x->count + w->count + y->count) * cup_dtype_size(y->dtype));
}
