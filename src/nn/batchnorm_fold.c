/* Batchnorm of a convolution's results as part of its weight and bias, in public calls. */
#include "nn/layers.h"

#include "cupola/ops.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

/* gamma / sqrt(variance + epsilon) of each channel, in the statistics' dtype. */
static cup_tensor *factor_of(cup_context *c, const cup_batchnorm_layer *l)
{
    cup_dtype dtype = l->running_var->dtype;
    cup_tensor *more = cup_full(c, dtype, 0, NULL, l->epsilon);
    cup_tensor *rstd = cup_rsqrt(c, cup_add(c, l->running_var, more));
    return cup_mul(c, rstd, cup_cast(c, l->weight, dtype));
}

/* beta + (bias - mean) factor. */
static cup_tensor *bias_of(cup_context *c, const cup_batchnorm_layer *l, cup_tensor *bias,
                           cup_tensor *factor)
{
    cup_dtype dtype = factor->dtype;
    cup_tensor *from = bias ? cup_sub(c, cup_cast(c, bias, dtype), l->running_mean)
                            : cup_neg(c, l->running_mean);
    cup_tensor *moved = cup_mul(c, from, factor);
    return l->bias ? cup_add(c, moved, cup_cast(c, l->bias, dtype)) : moved;
}

/* On a GPU the channels of each window become neighbours, as kernels read them. */
static cup_tensor *laid(cup_context *c, cup_tensor *weight)
{
    if (!cup_device_is_cuda(c) || weight->shape[2] * weight->shape[3] == 1)
        return weight;
    cup_tensor *lines = cup_copy(c, cup_permute(c, weight, (int64_t[]){0, 2, 3, 1}, 4));
    return cup_permute(c, lines, (int64_t[]){0, 3, 1, 2}, 4);
}

static cup_status make(cup_context *c, const cup_batchnorm_layer *l, cup_conv2d_layer *conv)
{
    cup_tensor *weight = conv->weight, *factor = factor_of(c, l);
    CUP_TRY(c->error.status);
    const int64_t column[] = {factor->count, 1, 1, 1};
    cup_tensor *bias = cup_cast(c, bias_of(c, l, conv->bias, factor), weight->dtype);
    cup_tensor *scaled = cup_mul(c, cup_cast(c, weight, factor->dtype),
                                 cup_reshape(c, factor, 4, column));
    scaled = cup_cast(c, scaled, weight->dtype);
    /* A cast to the same dtype gives what it got. */
    scaled = scaled ? laid(c, scaled) : NULL;
    if (scaled && bias) {
        conv->weight = cup_keep(scaled);
        conv->bias = cup_keep(bias);
    }
    return c->error.status;
}

cup_status cup_batchnorm_layer_fold(const cup_batchnorm_layer *layer, cup_conv2d_layer *conv)
{
    cup_context *c = layer && conv ? cup__layer_context(&conv->layer, conv->weight) : NULL;
    if (!c)
        return CUP_ARGUMENT;
    if (!layer->weight || layer->weight->count != conv->weight->shape[0] ||
        conv->activation != CUP_ACTIVATION_NONE)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "a batchnorm can be folded into a convolution with as many results as it "
                         "has channels, and no activation");
    cup_scope_open_without_grad(c);
    cup_status status = make(c, layer, conv);
    cup_scope_close(c);
    return status;
}
