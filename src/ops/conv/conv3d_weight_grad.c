#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv3d_weight_grad_attributes attributes;

/* dweight is linear in dy, in x and in the sum; of the first two the gradient is a convolution
 * again. */
static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    const int64_t *x = g->in_shape[1].size;
    cup_tensor *d = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup_conv3d(g->c, g->in[1], d, NULL,
                       CUP_OPTIONS(cup_conv3d_options, .stride = {a->stride, a->stride_count},
                                   .padding = {a->padding, a->padding_count}, .same = a->same,
                                   .dilation = {a->dilation, a->dilation_count},
                                   .groups = a->groups));
    if (g->wanted[1])
        g->d_in[1] =
            cup__conv3d_input_grad(g->c, g->in[0], d, a->stride, a->stride_count,
                                   a->padding, a->padding_count, a->same, a->dilation,
                                   a->dilation_count, a->groups, x[2], x[3], x[4]);
    if (g->in_count > 2 && g->wanted[2])
        g->d_in[2] = d;
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define THREE(a, b, c) {a, b, c}, 3
#define SIX(a, b, c, d, e, f) {a, b, c, d, e, f}, 6
#define NONE {0}, 0
#define SIZED(name, stride, padding, same, dilation, groups, kernel)                               \
    static const attributes name = {stride, padding, same, dilation, groups, kernel}
SIZED(one, NONE, NONE, false, NONE, 1, ONE(1));
SIZED(plain, NONE, NONE, false, NONE, 1, THREE(1, 1, 1));
SIZED(three, NONE, ONE(1), false, NONE, 1, THREE(3, 3, 3));
SIZED(half, ONE(2), ONE(1), false, NONE, 1, THREE(3, 3, 3));
SIZED(odd, THREE(3, 1, 2), SIX(2, 0, 1, 3, 0, 2), false, THREE(2, 3, 1), 1, THREE(3, 2, 2));
SIZED(far, THREE(4, 2, 3), THREE(1, 0, 2), false, NONE, 1, THREE(2, 2, 3));
SIZED(same, THREE(2, 1, 2), NONE, true, NONE, 1, THREE(4, 3, 2));
SIZED(deep, NONE, THREE(3, 0, 0), false, NONE, 1, THREE(5, 1, 1));
SIZED(flat, NONE, THREE(0, 1, 1), false, NONE, 1, THREE(1, 3, 3));
SIZED(two_groups, THREE(2, 1, 1), ONE(1), false, NONE, 2, THREE(3, 2, 3));
SIZED(by_channel, NONE, ONE(1), false, NONE, 6, THREE(3, 3, 3));
SIZED(many, NONE, ONE(1), false, NONE, 1, THREE(3, 3, 3));
SIZED(many_half, ONE(2), ONE(1), false, NONE, 1, THREE(3, 3, 3));
static const cup__sample samples[] = {
    {"1x1x1x1x1 1x1x1x1x1", &one},
    {"2x3x3x4x5 2x5x3x4x5", &plain}, {"2x4x4x5x6 2x3x4x5x6", &three},
    {"1x5x3x3x4 1x7x5x6x7", &half}, {"2x4x2x9x3 2x3x7x8x5", &odd}, {"1x3x3x2x3 1x2x9x5x7", &far},
    {"1x4x3x4x3 1x3x5x4x6", &same}, {"1x2x4x3x4 1x3x2x3x4", &deep},
    {"3x5x2x6x5 3x4x2x6x5", &flat}, {"2x4x3x5x4 2x6x5x4x4", &two_groups},
    {"2x6x3x4x5 2x6x3x4x5", &by_channel}, {"2x32x4x6x7 2x24x4x6x7", &many},
    {"1x40x3x4x4 1x32x5x8x7", &many_half}, {"0x4x4x5x6 0x3x4x5x6", &three},
    {"2x4x4x5x6 2x0x4x5x6", &three},
    {"2x4x2x9x3 2x3x7x8x5 4x3x3x2x2", &odd}, {"2x32x4x6x7 2x24x4x6x7 32x24x3x3x3", &many},
    {"2x6x3x4x5 2x6x3x4x5 6x1x3x3x3", &by_channel}, {NULL, NULL}};
static const cup__sample bench[] = {{"8x64x16x56x56 8x64x16x56x56", &three}, {NULL, NULL}};

CUP__CONV_OP(conv3d_weight_grad, CUP__CONV3 + CUP__CONV_WEIGHT, weight_, cup__conv3d_impls,
             .strided_out = false)
