/* Computing a network, layer by layer. Images lie with their channels last throughout. */
#include "cupola/ops.h"
#include "nn/network.h"

#define FEW_CHANNELS 8

/* Whether windows stand side by side over all of images of a few channels, of which kernels for
 * convolutions could not read whole vectors. */
static bool is_patches(const cup__network_step *s, const cup_tensor *x)
{
    int64_t side = s->window;
    return side > 1 && s->stride == side && s->padding == 0 && s->dilation == 1 &&
           s->as.conv.groups == 1 &&
           cup_tensor_size(x, 3) < FEW_CHANNELS && cup_tensor_size(x, 1) % side == 0 &&
           cup_tensor_size(x, 2) % side == 0;
}

/* The windows as rows of a matrix, and so the weight. */
static cup_tensor *conv_patches(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    const cup_conv2d_layer *l = &s->as.conv;
    int64_t side = s->window, channels = cup_tensor_size(x, 3), out = cup_tensor_size(l->weight, 0);
    int64_t high = cup_tensor_size(x, 1) / side, wide = cup_tensor_size(x, 2) / side;
    const int64_t cut[] = {cup_tensor_size(x, 0), high, side, wide, side, channels};
    const int64_t rows[] = {cut[0], high, wide, side * side * channels};
    const int64_t matrix[] = {out, side * side * channels};
    const int64_t by_place[] = {0, 1, 3, 2, 4, 5}, last[] = {0, 2, 3, 1};
    x = cup_reshape(c, cup_permute(c, cup_reshape(c, x, 6, cut), by_place, 6), 4, rows);
    return cup_linear(c, x, cup_reshape(c, cup_permute(c, l->weight, last, 4), 2, matrix), l->bias);
}

static cup_tensor *conv(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    return is_patches(s, x) ? conv_patches(c, s, x) : cup_conv2d_layer_last(&s->as.conv, x, NULL);
}

/* A convolution that its batchnorm is part of, with what stands behind it. */
static cup_tensor *conv_joined(const cup__network_step *s, cup_activation activation,
                               cup_tensor *x, cup_tensor *residual)
{
    cup_conv2d_layer l = s->as.conv;
    l.activation = activation;
    return cup_conv2d_layer_last(&l, x, residual);
}

static cup_tensor *pool(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    if (s->kind == CUP__STEP_MAXPOOL)
        return cup_max_pool2d(c, x, &s->window, 1,
                              CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(s->stride),
                                          .padding = CUP_INTS(s->padding), .channels_last = true));
    return cup_avg_pool2d(c, x, &s->window, 1,
                          CUP_OPTIONS(cup_avg_pool2d_options, .stride = CUP_INTS(s->stride),
                                      .padding = CUP_INTS(s->padding), .channels_last = true));
}

/* [N, all before the channels, channels], or [N, all] where `flat`. */
static cup_tensor *lay(cup_context *c, cup_tensor *x, bool flat)
{
    int ndim = cup_tensor_ndim(x);
    int64_t count = cup_tensor_size(x, 0), places = 1;
    for (int i = 1; i < ndim - 1; i++)
        places *= cup_tensor_size(x, i);
    int64_t channels = ndim > 1 ? cup_tensor_size(x, -1) : 1;
    if (flat)
        return cup_reshape(c, x, 2, (int64_t[]){count, places * channels});
    return cup_reshape(c, x, 3, (int64_t[]){count, places, channels});
}

static cup_tensor *first_token(cup_context *c, cup_tensor *x)
{
    const int64_t from[] = {0, 0, 0};
    const int64_t size[] = {cup_tensor_size(x, 0), 1, cup_tensor_size(x, 2)};
    return lay(c, cup_slice(c, x, from, 3, size, 3), true);
}

static cup_tensor *class_token(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    const int64_t shape[] = {cup_tensor_size(x, 0), 1, cup_tensor_size(x, 2)};
    cup_tensor *both[] = {cup_broadcast(c, s->tensor, 3, shape), x};
    return cup_concat(c, both, 2, 1);
}

static cup_tensor *activate(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    switch (s->kind) {
    case CUP__STEP_RELU:
        return cup_relu(c, x);
    case CUP__STEP_GELU:
        return cup_gelu(c, x);
    case CUP__STEP_SILU:
        return cup_silu(c, x);
    case CUP__STEP_TANH:
        return cup_tanh(c, x);
    case CUP__STEP_SIGMOID:
        return cup_sigmoid(c, x);
    case CUP__STEP_LEAKYRELU:
        return cup_leaky_relu(c, x, s->numbers[0]);
    case CUP__STEP_ELU:
        return cup_elu(c, x, s->numbers[0]);
    case CUP__STEP_HARDSWISH:
        return cup_hardswish(c, x);
    case CUP__STEP_MISH:
        return cup_mish(c, x);
    case CUP__STEP_SOFTPLUS:
        return cup_softplus(c, x);
    default:
        return x;
    }
}

static cup_tensor *call_step(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    switch (s->kind) {
    case CUP__STEP_CONV:
        return conv(c, s, x);
    case CUP__STEP_LINEAR:
    case CUP__STEP_BATCHNORM:
    case CUP__STEP_LAYERNORM:
    case CUP__STEP_GROUPNORM:
    case CUP__STEP_DROPOUT:
    case CUP__STEP_TRANSFORMER:
        return cup_layer_call(&s->as.layer, x);
    case CUP__STEP_CONVTRANSPOSE:
    case CUP__STEP_ADAPTIVEPOOL:
    case CUP__STEP_UPSAMPLE:
    case CUP__STEP_PIXELSHUFFLE:
    case CUP__STEP_LOCALRESPONSENORM:
        return cup__network_image_call(c, s, x);
    case CUP__STEP_MAXPOOL:
    case CUP__STEP_AVGPOOL:
        return pool(c, s, x);
    case CUP__STEP_GLOBALPOOL:
        return cup_mean(c, x, (int64_t[]){1, 2}, 2, false);
    case CUP__STEP_MEANTOKENS:
        return cup_mean(c, x, (int64_t[]){1}, 1, false);
    case CUP__STEP_FLATTEN:
        return lay(c, x, true);
    case CUP__STEP_TOKENS:
        return lay(c, x, false);
    case CUP__STEP_FIRSTTOKEN:
        return first_token(c, x);
    case CUP__STEP_CLASSTOKEN:
        return class_token(c, s, x);
    case CUP__STEP_SCALE:
        return cup_mul(c, x, s->tensor);
    case CUP__STEP_POSITIONS:
        return cup_add(c, x, s->tensor);
    default:
        return activate(c, s, x);
    }
}

static cup_activation activation_of(int kind)
{
    return kind == CUP__STEP_RELU   ? CUP_ACTIVATION_RELU
           : kind == CUP__STEP_GELU ? CUP_ACTIVATION_GELU
           : kind == CUP__STEP_SILU ? CUP_ACTIVATION_SILU
                                    : CUP_ACTIVATION_NONE;
}

/* How many steps behind a step are computed with it; `added` is where the end of a residual is
 * among them. */
static int joined_steps(const cup_network *n, int at, const cup_tensor *x, bool *added)
{
    const cup__network_step *s = &n->steps[at];
    int left = n->count - at - 1;
    *added = false;
    if (s->kind == CUP__STEP_CONV && !s->folded)
        return left > 0 && s[1].kind == CUP__STEP_BATCHNORM && !is_patches(s, x)
                   ? 1 + joined_steps(n, at + 1, x, added)
                   : 0;
    if (s->kind == CUP__STEP_BATCHNORM || s->folded) {
        *added = left > 0 && s[1].kind == CUP__STEP_END;
        int next = left > *added ? s[1 + *added].kind : CUP__STEP_END;
        bool joins = s->folded ? activation_of(next) != CUP_ACTIVATION_NONE
                               : next == CUP__STEP_RELU;
        return *added + joins;
    }
    *added = s->kind == CUP__STEP_LINEAR && s->as.linear.activation == CUP_ACTIVATION_NONE &&
             left > 1 && s[1].kind == CUP__STEP_SCALE && s[2].kind == CUP__STEP_END;
    return *added ? 2 : 0;
}

/* (x weight^T + bias) scale + residual, with the scale in the weight and the bias. */
static cup_tensor *scaled_linear(cup_context *c, const cup__network_step *s, cup_tensor *x,
                                 cup_tensor *residual)
{
    const int64_t column[] = {cup_tensor_size(s[1].tensor, 0), 1};
    const cup_linear_layer *l = &s->as.linear;
    cup_tensor *weight = cup_mul(c, l->weight, cup_reshape(c, s[1].tensor, 2, column));
    cup_tensor *bias = l->bias ? cup_mul(c, l->bias, s[1].tensor) : NULL;
    return cup_linear_add(c, x, weight, residual, bias);
}

static cup_tensor *call_joined(cup_context *c, const cup__network_step *s, int joined,
                               cup_tensor *x, cup_tensor *residual)
{
    if (s->kind == CUP__STEP_LINEAR)
        return scaled_linear(c, s, x, residual);
    if (s->folded)
        return conv_joined(s, activation_of(s[joined].kind), x, residual);
    if (s->kind == CUP__STEP_CONV)
        return cup_batchnorm_layer_behind(&s[1].as.batchnorm, &s->as.conv, x, residual,
                                          s[joined].kind == CUP__STEP_RELU);
    return cup_batchnorm_layer_join(&s->as.batchnorm, x, residual,
                                    s[joined].kind == CUP__STEP_RELU);
}

static bool fits(const cup_network *n, const cup_tensor *x)
{
    return cup_tensor_ndim(x) == 4 && cup_tensor_size(x, 1) == n->sizes.height &&
           cup_tensor_size(x, 2) == n->sizes.width && cup_tensor_size(x, 3) == n->sizes.channels;
}

cup_tensor *cup_network_call(const cup_network *network, cup_tensor *x)
{
    cup_tensor *kept[CUP__NETWORK_DEPTH], *named[CUP__NETWORK_NAMES];
    int depth = 0;
    if (!network || cup_error(network->c) != CUP_OK)
        return NULL;
    cup_context *c = network->c;
    if (!x || !fits(network, x)) {
        char words[80] = "NULL";
        cup_fail(c, CUP_SHAPE, "the network takes images [N,%lld,%lld,%lld], not %s",
                 (long long)network->sizes.height, (long long)network->sizes.width,
                 (long long)network->sizes.channels,
                 x ? cup_tensor_text(x, words, sizeof words) : words);
        return NULL;
    }
    for (int i = 0; i < network->count && x; i++) {
        const cup__network_step *s = &network->steps[i];
        bool added;
        int joined = joined_steps(network, i, x, &added);
        if (joined) {
            x = call_joined(c, s, joined, x, added ? kept[--depth] : NULL);
            i += joined;
        } else if (s->kind == CUP__STEP_RESIDUAL) {
            kept[depth++] = x;
        } else if (s->kind == CUP__STEP_SHORTCUT) {
            cup_tensor *body = x;
            x = kept[depth - 1];
            kept[depth - 1] = body;
        } else if (s->kind == CUP__STEP_KEEP) {
            named[s->slot] = x;
        } else if (s->kind == CUP__STEP_CONCAT) {
            x = cup_concat(c, (cup_tensor *[]){named[s->slot], x}, 2, -1);
        } else if (s->kind == CUP__STEP_END) {
            x = cup_add(c, x, kept[--depth]);
        } else {
            x = call_step(c, s, x);
        }
    }
    /* Convolutions may give images as they lie otherwise. */
    return x && !network->sizes.classes && !cup_tensor_is_contiguous(x) ? cup_copy(c, x) : x;
}
