/* Computing a network, layer by layer. Images lie with their channels last throughout. */
#include "cupola/ops.h"
#include "nn/network.h"

static cup_tensor *conv(cup_context *c, const cup__network_step *s, cup_tensor *x)
{
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    cup_tensor *y = cup_conv2d_layer_call(&s->as.conv, cup_permute(c, x, first, 4));
    return cup_permute(c, y, last, 4);
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
        return x;
    }
}

static bool fits(const cup_network *n, const cup_tensor *x)
{
    return cup_tensor_ndim(x) == 4 && cup_tensor_size(x, 1) == n->sizes.height &&
           cup_tensor_size(x, 2) == n->sizes.width && cup_tensor_size(x, 3) == n->sizes.channels;
}

cup_tensor *cup_network_call(const cup_network *network, cup_tensor *x)
{
    cup_tensor *kept[CUP__NETWORK_DEPTH];
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
        if (s->kind == CUP__STEP_RESIDUAL) {
            kept[depth++] = x;
        } else if (s->kind == CUP__STEP_SHORTCUT) {
            cup_tensor *body = x;
            x = kept[depth - 1];
            kept[depth - 1] = body;
        } else if (s->kind == CUP__STEP_END) {
            x = cup_add(c, x, kept[--depth]);
        } else {
            x = call_step(c, s, x);
        }
    }
    return x;
}
