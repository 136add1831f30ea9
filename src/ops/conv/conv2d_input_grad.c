#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv2d_input_grad_attributes attributes;

/* dx is linear in dy and in the weight; the gradient of each is a convolution again. */
static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    cup_tensor *d = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup_conv2d(
            g->c, d, g->in[1], NULL,
            CUP_OPTIONS(cup_conv2d_options, .stride = {a->stride, a->stride_count},
                        .padding = {a->padding, a->padding_count}, .same = a->same,
                        .dilation = {a->dilation, a->dilation_count}, .groups = a->groups));
    if (g->wanted[1])
        cup__conv_weight_back(g, g->in[0], d, 2);
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define TWO(a, b) {a, b}, 2
#define FOUR(a, b, c, d) {a, b, c, d}, 4
#define NONE {0}, 0
#define SIZED(name, stride, padding, same, dilation, groups, height, width)                        \
    static const attributes name = {stride, padding, same, dilation, groups, height, width}
SIZED(one, NONE, NONE, false, NONE, 1, 1, 1);
SIZED(plain, NONE, NONE, false, NONE, 1, 6, 7);
SIZED(three, NONE, ONE(1), false, NONE, 1, 8, 9);
SIZED(half, ONE(2), ONE(1), false, NONE, 1, 9, 8);
SIZED(skip, ONE(2), NONE, false, NONE, 1, 7, 9);
SIZED(first, ONE(2), ONE(3), false, NONE, 1, 21, 23);
SIZED(far, TWO(5, 4), TWO(1, 0), false, NONE, 1, 17, 19);
SIZED(rest, TWO(3, 7), NONE, false, NONE, 1, 4, 6);
SIZED(odd, TWO(1, 3), FOUR(2, 0, 1, 3), false, TWO(2, 3), 1, 11, 13);
SIZED(gaps, NONE, FOUR(2, 0, 1, 3), false, TWO(2, 3), 1, 9, 17);
SIZED(tall, NONE, ONE(1), false, NONE, 1, 40, 50);
SIZED(apart, TWO(4, 6), TWO(3, 4), false, TWO(6, 4), 1, 15, 14);
SIZED(same, ONE(2), NONE, true, NONE, 1, 9, 10);
SIZED(wide, NONE, TWO(3, 4), false, NONE, 1, 1, 2);
SIZED(two_groups, ONE(2), ONE(1), false, NONE, 2, 7, 8);
SIZED(four_groups, NONE, ONE(1), false, NONE, 4, 9, 11);
SIZED(by_channel, NONE, ONE(1), false, NONE, 6, 9, 10);
SIZED(by_channel_many, NONE, ONE(3), false, NONE, 40, 13, 18);
SIZED(by_channel_half, TWO(2, 1), ONE(2), false, TWO(1, 2), 5, 9, 12);
SIZED(middle, NONE, ONE(1), false, NONE, 1, 14, 14);
SIZED(even, ONE(2), ONE(1), false, NONE, 1, 14, 13);
SIZED(even_skip, ONE(2), NONE, false, NONE, 1, 14, 13);
SIZED(deep, NONE, ONE(1), false, NONE, 1, 2, 2);
SIZED(big, NONE, ONE(1), false, NONE, 1, 128, 128);
SIZED(pass, ONE(2), ONE(1), false, NONE, 1, 56, 56);
SIZED(head, NONE, NONE, false, NONE, 1, 128, 128);
SIZED(photo, ONE(2), ONE(3), false, NONE, 1, 224, 224);
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1", &one},      {"2x5x6x7 5x3x1x1", &plain},
    {"2x4x8x9 4x3x3x3", &three},    {"1x5x5x4 5x7x3x3", &half},
    {"3x6x4x5 6x4x1x1", &skip},     {"1x8x11x12 8x3x7x7", &first},
    {"1x3x4x5 3x2x2x3", &far},      {"1x3x1x1 3x2x2x3", &rest},
    {"2x4x9x5 4x3x3x2", &odd},      {"1x3x3x3 3x4x3x3", &apart},
    {"1x4x5x5 4x3x3x4", &same},     {"1x3x3x5 3x2x5x6", &wide},
    {"0x4x8x9 4x3x3x3", &three},    {"2x4x8x9 4x0x3x3", &three},
    {"2x0x8x9 0x3x3x3", &three},    {"2x4x4x4 4x3x3x3", &two_groups},
    {"2x6x9x10 6x1x3x3", &by_channel}, {"1x12x9x10 12x1x3x3", &by_channel},
    {"2x5x5x12 5x1x5x3", &by_channel_half}, {"1x72x8x9 72x64x3x3", &three},
    {"1x130x5x4 130x33x3x3", &half}, {"3x24x8x9 24x16x3x3", &three},
    {"1x64x4x4 64x16x3x3", &two_groups}, {"2x20x8x9 20x24x3x3", &three},
    {"2x32x14x14 32x128x3x3", &middle}, {"2x40x7x7 40x136x3x3", &even},
    {"2x64x7x7 64x128x1x1", &even_skip}, {"3x56x14x14 56x16x3x3", &middle},
    {"2x24x9x5 24x32x3x2", &odd}, {"3x40x13x18 40x1x7x7", &by_channel_many},
    {"1x64x8x9 64x64x3x3", &three}, {"1x512x2x2 512x512x3x3", &deep},
    {"1x128x4x4 128x64x3x3", &two_groups}, {"2x32x9x11 32x8x3x3", &four_groups},
    {"2x72x9x11 72x16x3x3", &four_groups}, {"2x64x11x12 64x3x7x7", &first},
    {"3x24x8x9 24x3x3x3", &three}, {"2x16x4x5 16x4x2x3", &far}, {"1x16x5x5 16x1x3x4", &same},
    {"2x40x1x1 40x5x2x3", &rest}, {"1x16x3x5 16x8x5x6", &wide},
    {"3x2x6x7 2x64x1x1", &plain}, {"5x7x6x7 7x72x1x1", &plain}, {"2x1x6x7 1x33x1x1", &plain},
    {"3x64x6x7 64x3x1x1", &plain}, {"2x40x8x9 40x8x3x3", &three}, {"1x24x3x5 24x2x5x6", &wide},
    {"2x32x9x15 32x3x2x3", &gaps}, {"2x64x40x50 64x3x3x3", &tall}, {NULL, NULL}};
static const cup__sample bench[] = {{"64x128x128x128 128x64x3x3", &big},
                                    {"256x128x28x28 128x64x3x3", &pass},
                                    {"64x64x112x112 64x3x7x7", &photo},
                                    {"64x2x128x128 2x64x1x1", &head},
                                    {"64x64x128x128 64x3x3x3", &big},
                                    {NULL, NULL}};

CUP__CONV_OP(conv2d_input_grad, CUP__CONV_INPUT, input_, cup__conv_impls, .strided_out = true)
