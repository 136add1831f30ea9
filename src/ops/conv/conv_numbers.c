/* What the attributes of a convolution say, and the sizes of all its tensors. */
#include "ops/conv/conv.h"

#include <string.h>

#include "dispatch/attributes.h"
#include "dispatch/tuned.h"
#include "tensor/context.h"

#define MOST_SIDE ((int64_t)1 << 29) /* of sides, kernels and padding, so that sums fit an int */

typedef cup__conv2d_attributes attributes; /* as those of all but scaled_conv2d begin */

attributes cup__conv_attributes(const cup__call *call)
{
    if (!cup__conv_is_scaled(call))
        return *(const attributes *)call->attributes;
    const cup__scaled_conv2d_attributes *from = call->attributes;
    attributes a = {.stride_count = from->stride_count, .padding_count = from->padding_count,
                    .same = from->same, .dilation_count = from->dilation_count,
                    .groups = from->groups};
    memcpy(a.stride, from->stride, sizeof a.stride);
    memcpy(a.padding, from->padding, sizeof a.padding);
    memcpy(a.dilation, from->dilation, sizeof a.dilation);
    return a;
}

static const char *side_name(int dims, int d)
{
    static const char *const names[] = {"depth", "height", "width"};
    return names[d + 3 - dims];
}

static void take_each(int64_t to[3], const int64_t *from, int count, int64_t usual)
{
    for (int d = 0; d < 3; d++)
        to[d] = count == 0 ? usual : from[count == 1 ? 0 : d];
}

static void sides_of(int64_t to[3], const cup_tensor *t)
{
    for (int d = 0; d < t->ndim - 2; d++)
        to[d] = t->shape[2 + d];
}

static void take_padding(cup__conv_numbers *n, const int64_t *from, int count)
{
    for (int d = 0; d < n->dims; d++)
        for (int end = 0; end < 2; end++)
            n->padding[d][end] = count == 0             ? 0
                                 : count == 2 * n->dims ? from[2 * d + end]
                                                        : from[count == 1 ? 0 : d];
}

/* All but the sizes of the result of forward. */
static cup__conv_numbers begin(const cup__call *call)
{
    const attributes own = cup__conv_attributes(call), *a = &own;
    const cup__conv2d_input_grad_attributes *input = call->attributes;
    const cup__conv3d_input_grad_attributes *input3 = call->attributes;
    const cup__conv2d_weight_grad_attributes *weight = call->attributes;
    int part = cup__conv_part(call->op);
    cup__conv_numbers n = {.dims = call->op->kind < CUP__CONV3 ? 2 : 3,
                           .same = a->same,
                           .groups = a->groups};
    take_each(n.stride, a->stride, a->stride_count, 1);
    take_each(n.dilation, a->dilation, a->dilation_count, 1);
    take_padding(&n, a->padding, a->padding_count);
    if (part == CUP__CONV_FORWARD)
        sides_of(n.in, call->in[0]);
    else if (part == CUP__CONV_WEIGHT)
        sides_of(n.in, call->in[1]);
    else if (n.dims == 2)
        memcpy(n.in, (int64_t[]){input->height, input->width}, 2 * sizeof *n.in);
    else
        memcpy(n.in, (int64_t[]){input3->depth, input3->height, input3->width}, sizeof n.in);
    if (part == CUP__CONV_WEIGHT)
        take_each(n.kernel, weight->kernel, weight->kernel_count, 1);
    else
        sides_of(n.kernel, call->in[1]);
    return n;
}

static cup_status check_count(cup__call *call, const char *name, int dims, int count)
{
    if (count <= 1 || count == dims)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT, "%s has %d numbers; give it one, or one each for %s",
                          name, count, dims == 2 ? "height and width" : "depth, height and width");
}

static cup_status check_counts(cup__call *call, int dims)
{
    const attributes own = cup__conv_attributes(call), *a = &own;
    const cup__conv2d_weight_grad_attributes *weight = call->attributes;
    CUP_TRY(check_count(call, "stride", dims, a->stride_count));
    CUP_TRY(check_count(call, "dilation", dims, a->dilation_count));
    if (cup__conv_part(call->op) == CUP__CONV_WEIGHT)
        CUP_TRY(check_count(call, "kernel", dims, weight->kernel_count));
    int count = a->padding_count;
    if (count <= 1 || count == dims || count == 2 * dims)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT,
                          "padding has %d numbers; give it one, one each for %s", count,
                          dims == 2 ? "height and width, or four: top, bottom, left, right"
                                    : "depth, height and width, or six: before and behind each");
}

static cup_status check_side(cup__call *call, const cup__conv_numbers *n, int d)
{
    const int64_t *pad = n->padding[d];
    const char *side = side_name(n->dims, d);
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
static cup_status finish_side(cup__call *call, cup__conv_numbers *n, int d)
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
                              side_name(n->dims, d), (long long)n->kernel[d],
                              (long long)n->dilation[d], (long long)reach,
                              (long long)(room + reach));
    n->out[d] = room / stride + 1;
    return CUP_OK;
}

cup_status cup__conv_check(cup__call *call, cup__conv_numbers *n)
{
    CUP_TRY(check_counts(call, call->op->kind < CUP__CONV3 ? 2 : 3));
    *n = begin(call);
    for (int d = 0; d < n->dims; d++) {
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

cup__conv_numbers cup__conv_numbers_of(const cup__call *call)
{
    cup__conv_numbers n = begin(call);
    for (int d = 0; d < n.dims; d++)
        finish_side((cup__call *)(uintptr_t)call, &n, d); /* inference found it good */
    return n;
}

bool cup__conv_words(const cup__call *call, bool similar, cup__text *to)
{
    cup__conv_numbers n = cup__conv_numbers_of(call);
    if (similar)
        return false;
    cup__call asked = *call;
    if (cup__conv_part(call->op) == CUP__CONV_WEIGHT)
        asked.in_count = 2; /* whether it is added to a tensor is no matter */
    cup__text_add(to, "%s", call->row->name);
    cup__words_of_inputs(&asked, to);
    for (int d = 0; d < n.dims; d++)
        cup__text_add(to, " %s=%lld:kernel=%lld:stride=%lld:dilation=%lld:padding=%lld,%lld",
                      side_name(n.dims, d), (long long)n.in[d], (long long)n.kernel[d],
                      (long long)n.stride[d], (long long)n.dilation[d],
                      (long long)n.padding[d][0], (long long)n.padding[d][1]);
    cup__text_add(to, " groups=%lld", (long long)n.groups);
    if (call->in[0]->dtype == CUP_F32 && call->c->precision != CUP__HIGHEST)
        cup__text_add(to, " precision=%s", cup__precision_names[call->c->precision]);
    return true;
}
