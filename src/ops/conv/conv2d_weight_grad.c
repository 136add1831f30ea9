#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv2d_weight_grad_attributes attributes;

/* dweight is linear in dy, in x and in the sum; of the first two the gradient is a convolution
 * again. */
static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    const int64_t *x = g->in_shape[1].size;
    cup_tensor *d = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup_conv2d(
            g->c, g->in[1], d, NULL,
            CUP_OPTIONS(cup_conv2d_options, .stride = {a->stride, a->stride_count},
                        .padding = {a->padding, a->padding_count}, .same = a->same,
                        .dilation = {a->dilation, a->dilation_count}, .groups = a->groups));
    if (g->wanted[1])
        g->d_in[1] = cup__conv2d_input_grad(g->c, g->in[0], d, a->stride, a->stride_count,
                                            a->padding, a->padding_count, a->same, a->dilation,
                                            a->dilation_count, a->groups, x[2], x[3]);
    if (g->in_count > 2 && g->wanted[2])
        g->d_in[2] = d;
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define TWO(a, b) {a, b}, 2
#define FOUR(a, b, c, d) {a, b, c, d}, 4
#define NONE {0}, 0
#define SIZED(name, stride, padding, same, dilation, groups, kernel)                               \
    static const attributes name = {stride, padding, same, dilation, groups, kernel}
SIZED(one, NONE, NONE, false, NONE, 1, ONE(1));
SIZED(three, NONE, ONE(1), false, NONE, 1, ONE(3));
SIZED(half, ONE(2), ONE(1), false, NONE, 1, TWO(3, 3));
SIZED(skip, ONE(2), NONE, false, NONE, 1, ONE(1));
SIZED(first, ONE(2), ONE(3), false, NONE, 1, ONE(7));
SIZED(far, TWO(5, 4), TWO(1, 0), false, NONE, 1, TWO(2, 3));
SIZED(odd, TWO(1, 3), FOUR(2, 0, 1, 3), false, TWO(2, 3), 1, TWO(3, 2));
SIZED(same, ONE(2), NONE, true, NONE, 1, TWO(3, 4));
SIZED(wide, NONE, TWO(3, 4), false, NONE, 1, TWO(5, 6));
SIZED(two_groups, ONE(2), ONE(1), false, NONE, 2, ONE(3));
SIZED(four_groups, NONE, ONE(1), false, NONE, 4, ONE(3));
SIZED(by_channel, NONE, ONE(1), false, NONE, 6, ONE(3));
SIZED(by_channel_many, NONE, ONE(3), false, NONE, 40, ONE(7));
SIZED(two_taps, NONE, NONE, false, NONE, 1, TWO(1, 2));
SIZED(by_channel_half, TWO(2, 1), ONE(2), false, TWO(1, 2), 5, TWO(5, 3));
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1", &one},         {"2x5x6x7 2x3x6x7", &one},
    {"2x4x8x9 2x3x8x9", &three},       {"1x5x5x4 1x7x9x8", &half},
    {"3x6x4x5 3x4x7x9", &skip},        {"1x8x11x12 1x3x21x23", &first},
    {"1x3x4x5 1x2x17x19", &far},       {"2x4x9x5 2x3x11x13", &odd},
    {"1x4x5x5 1x3x9x10", &same},       {"1x3x3x5 1x2x1x2", &wide},
    {"0x4x8x9 0x3x8x9", &three},       {"2x4x8x9 2x0x8x9", &three},
    {"2x0x8x9 2x3x8x9", &three},       {"2x4x4x4 2x6x7x8", &two_groups},
    {"2x6x9x10 2x6x9x10", &by_channel}, {"1x12x9x10 1x6x9x10", &by_channel},
    {"2x5x5x12 2x5x9x12", &by_channel_half}, {"1x72x8x9 1x64x8x9", &three},
    {"1x130x5x4 1x33x9x8", &half},     {"3x24x8x9 3x16x8x9", &three},
    {"2x9x40x41 2x3x40x41", &three},
    {"1x64x4x4 1x32x7x8", &two_groups}, {"2x20x8x9 2x36x8x9", &three},
    {"2x128x14x14 2x64x14x14", &three}, {"1x64x28x28 1x72x28x28", &three},
    {"2x72x7x7 2x136x14x13", &half}, {"5x192x7x7 5x40x7x7", &one},
    {"2x24x9x5 2x32x11x13", &odd}, {"3x64x12x11 3x3x23x21", &first},
    {"2x32x14x15 2x5x14x15", &three}, {"3x40x13x18 3x40x13x18", &by_channel_many},
    {"2x16x18x19 2x16x18x20", &two_taps}, {"2x16x18x20 2x24x18x20", &one},
    {"1x512x2x2 1x512x2x2", &three},   {"4x8x30x31 4x8x30x31", &three},
    {"1x128x4x4 1x128x7x8", &two_groups}, {"2x32x9x10 2x32x9x10", &four_groups},
    {"2x72x9x11 2x64x9x11", &four_groups},
    {"3x2x20x19 3x64x20x19", &one}, {"3x72x20x19 3x3x20x19", &one}, {"2x4x33x31 2x4x33x31", &one},
    {"2x300x9x10 2x1x9x10", &one}, {"2x7x9x10 2x65x9x10", &one},
    {"2x4x8x9 2x3x8x9 4x3x3x3", &three}, {"0x4x8x9 0x3x8x9 4x3x3x3", &three},
    {"2x4x8x9 2x0x8x9 4x0x3x3", &three}, {"1x64x4x4 1x32x7x8 64x16x3x3", &two_groups},
    {"2x6x9x10 2x6x9x10 6x1x3x3", &by_channel},
    {"3x40x13x18 3x40x13x18 40x1x7x7", &by_channel_many},
    {"3x64x12x11 3x3x23x21 64x3x7x7", &first}, {"2x32x14x15 2x5x14x15 32x5x3x3", &three},
    {"2x128x14x14 2x64x14x14 128x64x3x3", &three}, {"5x192x7x7 5x40x7x7 192x40x1x1", &one},
    {"1x512x2x2 1x512x2x2 512x512x3x3", &three}, {"1x512x2x2 1x512x2x2 512x512x1x1", &one},
    {"3x2x20x19 3x64x20x19 2x64x1x1", &one}, {"2x24x9x5 2x32x11x13 24x32x3x2", &odd},
    {"5x200x15x13 5x96x15x13", &three}, {"5x200x15x13 5x96x15x13 200x96x3x3", &three},
    {"7x72x8x8 7x64x15x16", &half}, {"40x128x8x8 40x32x8x8 128x32x3x3", &three},
    {"2x72x9x11 2x64x9x11 72x16x3x3", &four_groups}, {NULL, NULL}};
static const cup__sample bench[] = {{"64x128x128x128 64x64x128x128", &three},
                                    {"256x128x28x28 256x64x56x56", &half},
                                    {"64x2x128x128 64x64x128x128", &one},
                                    {NULL, NULL}};

/* Sums over all places of dy. */
CUP__CONV_OP(conv2d_weight_grad, CUP__CONV_WEIGHT, weight_, cup__conv_weight_impls,
             .strided_out = false)
