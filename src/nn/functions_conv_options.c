/* The calls of conv2d and conv3d: what of their options is no attribute of the op. Padding that is
 * not zeros is made of x before; what stands behind the sums goes with them, or where it is
 * recorded into ops of its own, whose gradients know how to keep little. */
#include <string.h>

#include "dispatch/attributes.h"
#include "dispatch/call.h"
#include "ops/conv/conv.h"
#include "tensor/context.h"

static cup__conv2d_attributes attributes_of(const cup_conv2d_options *o)
{
    cup__conv2d_attributes a = {.same = o->same, .groups = o->groups ? o->groups : 1};
    a.stride_count = cup__take_ints(a.stride, o->stride.values, o->stride.count);
    a.padding_count = cup__take_ints(a.padding, o->padding.values, o->padding.count);
    a.dilation_count = cup__take_ints(a.dilation, o->dilation.values, o->dilation.count);
    return a;
}

/* x with before[d] and after[d] along each dimension, of itself. */
static cup_tensor *with_edges(cup_context *c, cup_tensor *x, cup_padding_mode mode,
                              const int64_t *before, const int64_t *after)
{
    switch (mode) {
    case CUP_PADDING_MODE_REFLECT:
        return cup_pad_reflect(c, x, before, x->ndim, after, x->ndim);
    case CUP_PADDING_MODE_REPLICATE:
        return cup_pad_replicate(c, x, before, x->ndim, after, x->ndim);
    case CUP_PADDING_MODE_CIRCULAR:
        return cup_pad_circular(c, x, before, x->ndim, after, x->ndim);
    case CUP_PADDING_MODE_ZEROS:
        break;
    }
    cup_fail(c, CUP_ARGUMENT, "conv%dd: %d is no padding mode", x->ndim - 2, (int)mode);
    return NULL;
}

/* Images with their channels last, of which the result lies so, too. */
static cup_tensor *padded(cup_context *c, cup_tensor *x, cup_padding_mode mode,
                          const cup__conv_numbers *n)
{
    int64_t before[5] = {0}, after[5] = {0}, order[5], back[5];
    bool last = !x->contiguous && x->shape[1] > 1 && x->stride[1] == 1;
    for (int d = 0; d < x->ndim; d++) {
        int from = !last || d == 0 ? d : d == x->ndim - 1 ? 1 : d + 1;
        order[d] = from;
        back[from] = d;
        before[d] = from > 1 ? n->padding[from - 2][0] : 0;
        after[d] = from > 1 ? n->padding[from - 2][1] : 0;
    }
    if (last)
        x = cup_permute(c, x, order, x->ndim);
    x = x ? with_edges(c, x, mode, before, after) : NULL;
    return x && last ? cup_permute(c, x, back, x->ndim) : x;
}

/* Where padding is none of zeros: x with it, and options without it. */
static cup_tensor *pad_first(cup_context *c, const cup__row *row, cup_tensor *const *in,
                             cup_conv2d_options *o)
{
    cup__call call;
    cup__conv2d_attributes a = attributes_of(o);
    if (cup_error(c) != CUP_OK || cup__call_begin(&call, c, row, in, 3, &a) != CUP_OK)
        return NULL;
    const cup__conv_numbers n = cup__conv_numbers_of(&call);
    o->padding = (cup_ints){0};
    o->same = false;
    return padded(c, in[0], o->padding_mode, &n);
}

static cup_tensor *activated(cup_context *c, cup_activation activation, cup_tensor *y)
{
    switch (activation) {
    case CUP_ACTIVATION_RELU:
        return cup_relu(c, y);
    case CUP_ACTIVATION_GELU:
        return cup_gelu(c, y);
    case CUP_ACTIVATION_SILU:
        return cup_silu(c, y);
    case CUP_ACTIVATION_TANH:
        return cup_tanh(c, y);
    case CUP_ACTIVATION_SIGMOID:
        return cup_sigmoid(c, y);
    case CUP_ACTIVATION_NONE:
        return y;
    case CUP_ACTIVATION_SWIGLU:
        break;
    }
    cup_fail(c, CUP_ARGUMENT, "conv2d: its activation is none that an image can have");
    return NULL;
}

/* With what stands behind it, in ops of their own; these take elements row by row. */
static cup_tensor *in_parts(cup_context *c, cup_tensor *const *in, const cup_conv2d_options *o)
{
    static const int64_t lines[] = {0, 2, 3, 1}, planes[] = {0, 3, 1, 2};
    cup_tensor *y = cup__conv2d_op(c, in[0], in[1], in[2], o), *residual = o->residual;
    if (!y)
        return NULL;
    cup__shape shape = cup__shape_of(y), other = residual ? cup__shape_of(residual) : shape;
    if (!cup__shape_equal(&shape, &other) || other.dtype != shape.dtype) {
        cup_fail(c, CUP_SHAPE, "conv2d: residual must have the shape and dtype of the result");
        return NULL;
    }
    bool last = !y->contiguous;
    y = last ? cup_permute(c, y, lines, 4) : y;
    if (residual)
        y = cup_add(c, y, last ? cup_permute(c, residual, lines, 4) : residual);
    y = activated(c, o->activation, y);
    return last ? cup_permute(c, y, planes, 4) : y;
}

static cup_tensor *join(cup_context *c, cup_tensor *const *in, const cup_conv2d_options *o)
{
    cup__conv2d_attributes a = attributes_of(o);
    cup__conv2d_join_attributes joined;
    bool one_pass = o->activation >= CUP_ACTIVATION_NONE && o->activation <= CUP_ACTIVATION_SILU;
    if (!one_pass || !c || (c->tape_calls && c->tape_calls->wants(c, in, 4)))
        return in_parts(c, in, o);
    memset(&joined, 0, sizeof joined);
    memcpy(&joined, &a, sizeof a);
    joined.activation = o->activation;
    return cup__op_call(c, &cup__rows[CUP__OP_conv2d_join], in, 4, &joined, NULL);
}

cup_tensor *cup_conv2d(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias,
                       const cup_conv2d_options *options)
{
    cup_conv2d_options o;
    if (!cup__take_options(c, "conv2d", &o, sizeof o, options))
        return NULL;
    cup_tensor *in[] = {x, weight, bias, o.residual};
    bool plain = !o.residual && o.activation == CUP_ACTIVATION_NONE;
    if (plain && o.padding_mode == CUP_PADDING_MODE_ZEROS)
        return cup__conv2d_op(c, x, weight, bias, &o);
    cup_scope_open(c);
    if (o.padding_mode != CUP_PADDING_MODE_ZEROS)
        in[0] = c ? pad_first(c, &cup__rows[CUP__OP_conv2d], in, &o) : NULL;
    return cup_scope_return(c, in[0] ? plain ? cup__conv2d_op(c, in[0], weight, bias, &o)
                                             : join(c, in, &o)
                                     : NULL);
}

cup_tensor *cup_conv3d(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias,
                       const cup_conv3d_options *options)
{
    cup_conv3d_options o;
    if (!cup__take_options(c, "conv3d", &o, sizeof o, options))
        return NULL;
    if (o.padding_mode == CUP_PADDING_MODE_ZEROS)
        return cup__conv3d_op(c, x, weight, bias, &o);
    cup_conv2d_options own = {.stride = o.stride, .padding = o.padding, .dilation = o.dilation,
                              .same = o.same, .groups = o.groups, .padding_mode = o.padding_mode};
    cup_scope_open(c);
    x = c ? pad_first(c, &cup__rows[CUP__OP_conv3d], (cup_tensor *[]){x, weight, bias}, &own)
          : NULL;
    o.padding = own.padding;
    o.same = own.same;
    return cup_scope_return(c, x ? cup__conv3d_op(c, x, weight, bias, &o) : NULL);
}
