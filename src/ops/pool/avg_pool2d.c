#include "dispatch/attributes.h"
#include "ops/pool/pool.h"

static cup_status gradient(cup__grad *g)
{
    const cup__avg_pool2d_attributes *a = g->attributes;
    const int64_t *side = &g->in_shape[0].size[a->channels_last ? 1 : 2];
    g->d_in[0] = cup__avg_pool2d_grad(g->c, g->d_out[0], a->window, a->window_count, a->stride,
                                      a->stride_count, a->padding, a->padding_count,
                                      a->count_include_pad, a->channels_last, side[0], side[1]);
    return CUP_OK;
}

#define TWO(a, b) {a, b}, 2
#define NONE {0}, 0
static const cup__avg_pool2d_attributes two = {.window = {2}, .window_count = 1},
                                        last = {TWO(2, 2), NONE, NONE, false, false, true},
                                        three = {TWO(3, 3), TWO(2, 2), TWO(1, 1), true, true,
                                                 false},
                                        last_three = {TWO(3, 3), TWO(2, 2), TWO(1, 1), true, false,
                                                      true},
                                        odd = {TWO(5, 2), TWO(1, 3), TWO(2, 1), true, false, false},
                                        near = {TWO(3, 3), TWO(1, 1), TWO(1, 1), false, true,
                                                false},
                                        large = {TWO(17, 16), TWO(5, 1), TWO(8, 3), false, true,
                                                 false};
static const cup__sample samples[] = {
    {"1x1x2x2", &two},   {"2x3x8x16", &two},    {"1x2x5x7", &two},    {"0x3x4x4", &two},
    {"2x5x7x3", &last},  {"1x8x6x32", &last},   {"2x3x9x11", &three}, {"3x6x7x5", &last_three},
    {"2x2x11x13", &odd}, {"1x2x20x18", &large}, {"2x3x9x16", &three}, {"2x3x7x24", &near},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32x64x128x128", &two},
                                    {"32x128x128x64", &last},
                                    {"64x64x112x112", &three},
                                    {NULL, NULL}};

const cup__op cup__op_avg_pool2d = {
    .infer = cup__pool_infer,
    .specification = cup__pool_specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = cup__pool_impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-0.5, 1}},
    .tolerance = 8, /* sums of windows */
};

#define SIZED(name, window, stride, padding, include, last, height, width)                         \
    static const cup__avg_pool2d_grad_attributes name = {window, stride, padding, include, last,   \
                                                         height, width}
SIZED(two_grad, TWO(2, 2), TWO(2, 2), NONE, false, false, 8, 16);
SIZED(rest_grad, TWO(2, 2), NONE, NONE, false, false, 5, 7);
SIZED(last_grad, TWO(2, 2), NONE, NONE, true, true, 7, 9);
SIZED(three_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), true, false, 9, 11);
SIZED(wide_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), false, false, 9, 16);
SIZED(near_grad, TWO(3, 3), TWO(1, 1), TWO(1, 1), true, false, 7, 24);
SIZED(pass_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), false, false, 112, 112);
SIZED(odd_grad, TWO(5, 2), TWO(1, 3), TWO(2, 1), false, false, 11, 13);
SIZED(big_grad, TWO(2, 2), TWO(2, 2), NONE, false, false, 128, 128);
static const cup__sample grad_samples[] = {{"2x3x4x8", &two_grad},   {"1x2x2x3", &rest_grad},
                                           {"2x3x4x5", &last_grad},  {"1x3x4x16", &last_grad},
                                           {"2x3x5x6", &three_grad}, {"0x3x4x8", &two_grad},
                                           {"2x2x11x5", &odd_grad},  {"2x3x5x8", &wide_grad},
                                           {"2x3x7x24", &near_grad}, {NULL, NULL}};
static const cup__sample grad_bench[] = {
    {"32x64x64x64", &big_grad}, {"64x64x56x56", &pass_grad}, {NULL, NULL}};

/* Whether there are more windows than fit whole. */
static bool is_ceiled(const cup__grad *g, const cup__avg_pool2d_grad_attributes *a)
{
    const int64_t sides[2] = {a->height, a->width};
    for (int i = 0; i < 2; i++) {
        int64_t window = a->window[a->window_count > 1 ? i : 0], padding = 0, stride = window;
        if (a->stride_count)
            stride = a->stride[a->stride_count > 1 ? i : 0];
        if (a->padding_count)
            padding = a->padding[a->padding_count > 1 ? i : 0];
        int64_t whole = (sides[i] + 2 * padding - window) / stride + 1;
        if (g->in_shape[0].size[(a->channels_last ? 1 : 2) + i] > whole)
            return true;
    }
    return false;
}

static cup_status gradient_again(cup__grad *g)
{
    const cup__avg_pool2d_grad_attributes *a = g->attributes;
    g->d_in[0] = cup_avg_pool2d(
        g->c, g->d_out[0], a->window, a->window_count,
        CUP_OPTIONS(cup_avg_pool2d_options, .stride = {a->stride, a->stride_count},
                    .padding = {a->padding, a->padding_count}, .ceil_mode = is_ceiled(g, a),
                    .count_include_pad = a->count_include_pad, .channels_last = a->channels_last));
    return CUP_OK;
}

const cup__op cup__op_avg_pool2d_grad = {
    .gradient = gradient_again,
    .composed = gradient_again,
    .kind = CUP__POOL_GRAD,
    .infer = cup__pool_infer,
    .specification = cup__pool_grad_specification,
    .impls = cup__pool_grad_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .tolerance = 8,
};
