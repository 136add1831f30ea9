#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv3d_input_grad_attributes attributes;

/* dx is linear in dy and in the weight; the gradient of each is a convolution again. */
static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    cup_tensor *d = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup_conv3d(g->c, d, g->in[1], NULL,
                       CUP_OPTIONS(cup_conv3d_options, .stride = {a->stride, a->stride_count},
                                   .padding = {a->padding, a->padding_count}, .same = a->same,
                                   .dilation = {a->dilation, a->dilation_count},
                                   .groups = a->groups));
    if (g->wanted[1])
        cup__conv_weight_back(g, g->in[0], d, 3);
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define THREE(a, b, c) {a, b, c}, 3
#define SIX(a, b, c, d, e, f) {a, b, c, d, e, f}, 6
#define NONE {0}, 0
#define SIZED(name, stride, padding, same, dilation, groups, depth, height, width)                 \
    static const attributes name = {stride, padding, same, dilation, groups, depth, height, width}
SIZED(one, NONE, NONE, false, NONE, 1, 1, 1, 1);
SIZED(plain, NONE, NONE, false, NONE, 1, 3, 4, 5);
SIZED(three, NONE, ONE(1), false, NONE, 1, 4, 5, 6);
SIZED(half, ONE(2), ONE(1), false, NONE, 1, 5, 6, 7);
SIZED(odd, THREE(3, 1, 2), SIX(2, 0, 1, 3, 0, 2), false, THREE(2, 3, 1), 1, 7, 8, 5);
SIZED(far, THREE(4, 2, 3), THREE(1, 0, 2), false, NONE, 1, 9, 5, 7);
SIZED(same, THREE(2, 1, 2), NONE, true, NONE, 1, 5, 4, 6);
SIZED(deep, NONE, THREE(3, 0, 0), false, NONE, 1, 2, 3, 4);
SIZED(flat, NONE, THREE(0, 1, 1), false, NONE, 1, 2, 6, 5);
SIZED(two_groups, THREE(2, 1, 1), ONE(1), false, NONE, 2, 5, 4, 4);
SIZED(by_channel, NONE, ONE(1), false, NONE, 6, 3, 4, 5);
SIZED(many, NONE, ONE(1), false, NONE, 1, 4, 6, 7);
SIZED(many_half, ONE(2), ONE(1), false, NONE, 1, 5, 8, 7);
static const cup__sample samples[] = {
    {"1x1x1x1x1 1x1x1x1x1", &one},
    {"2x3x3x4x5 3x5x1x1x1", &plain}, {"2x4x4x5x6 4x3x3x3x3", &three},
    {"1x5x3x3x4 5x7x3x3x3", &half}, {"2x4x2x9x3 4x3x3x2x2", &odd}, {"1x3x3x2x3 3x2x2x2x3", &far},
    {"1x4x3x4x3 4x3x4x3x2", &same}, {"1x2x4x3x4 2x3x5x1x1", &deep},
    {"3x5x2x6x5 5x4x1x3x3", &flat}, {"2x4x3x5x4 4x3x3x2x3", &two_groups},
    {"2x6x3x4x5 6x1x3x3x3", &by_channel}, {"2x32x4x6x7 32x24x3x3x3", &many},
    {"1x40x3x4x4 40x32x3x3x3", &many_half}, {"0x4x4x5x6 4x3x3x3x3", &three},
    {"2x4x4x5x6 4x0x3x3x3", &three}, {NULL, NULL}};
SIZED(large, NONE, ONE(1), false, NONE, 1, 16, 56, 56);
static const cup__sample bench[] = {{"8x64x16x56x56 64x64x3x3x3", &large}, {NULL, NULL}};

CUP__CONV_OP(conv3d_input_grad, CUP__CONV3 + CUP__CONV_INPUT, input_, cup__conv3d_impls,
             .strided_out = true)
