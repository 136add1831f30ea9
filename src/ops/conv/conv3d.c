#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv3d_attributes attributes;

static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    const int64_t *x = g->in_shape[0].size;
    cup_tensor *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup__conv3d_input_grad(g->c, dy, g->in[1], a->stride, a->stride_count,
                                   a->padding, a->padding_count, a->same, a->dilation,
                                   a->dilation_count, a->groups, x[2], x[3], x[4]);
    if (g->wanted[1])
        cup__conv_weight_back(g, dy, g->in[0], 3);
    if (g->in_count > 2 && g->wanted[2])
        g->d_in[2] = cup_sum(g->c, dy, (int64_t[]){0, 2, 3, 4}, 4, false);
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define THREE(a, b, c) {a, b, c}, 3
#define SIX(a, b, c, d, e, f) {a, b, c, d, e, f}, 6
#define NONE {0}, 0
#define SIZED(name, stride, padding, same, dilation, groups)                                       \
    static const attributes name = {stride, padding, same, dilation, groups}
SIZED(one, NONE, NONE, false, NONE, 1);
SIZED(plain, NONE, NONE, false, NONE, 1);
SIZED(three, NONE, ONE(1), false, NONE, 1);
SIZED(half, ONE(2), ONE(1), false, NONE, 1);
SIZED(odd, THREE(3, 1, 2), SIX(2, 0, 1, 3, 0, 2), false, THREE(2, 3, 1), 1);
SIZED(far, THREE(4, 2, 3), THREE(1, 0, 2), false, NONE, 1);
SIZED(same, THREE(2, 1, 2), NONE, true, NONE, 1);
SIZED(deep, NONE, THREE(3, 0, 0), false, NONE, 1);
SIZED(flat, NONE, THREE(0, 1, 1), false, NONE, 1);
SIZED(two_groups, THREE(2, 1, 1), ONE(1), false, NONE, 2);
SIZED(by_channel, NONE, ONE(1), false, NONE, 6);
SIZED(many, NONE, ONE(1), false, NONE, 1);
SIZED(many_half, ONE(2), ONE(1), false, NONE, 1);
static const cup__sample samples[] = {
    {"1x1x1x1x1 1x1x1x1x1 1", &one},
    {"2x5x3x4x5 3x5x1x1x1 -", &plain}, {"2x3x4x5x6 4x3x3x3x3 4", &three},
    {"1x7x5x6x7 5x7x3x3x3 5", &half}, {"2x3x7x8x5 4x3x3x2x2 -", &odd},
    {"1x2x9x5x7 3x2x2x2x3 -", &far}, {"1x3x5x4x6 4x3x4x3x2 -", &same},
    {"1x3x2x3x4 2x3x5x1x1 -", &deep}, {"3x4x2x6x5 5x4x1x3x3 -", &flat},
    {"2x6x5x4x4 4x3x3x2x3 4", &two_groups}, {"2x6x3x4x5 6x1x3x3x3 -", &by_channel},
    {"2x24x4x6x7 32x24x3x3x3 32", &many}, {"1x32x5x8x7 40x32x3x3x3 -", &many_half},
    {"0x3x4x5x6 4x3x3x3x3 4", &three}, {"2x0x4x5x6 4x0x3x3x3 4", &three}, {NULL, NULL}};
static const cup__sample bench[] = {{"8x64x16x56x56 64x64x3x3x3 -", &three}, {NULL, NULL}};

CUP__CONV_OP(conv3d, CUP__CONV3 + CUP__CONV_FORWARD, , cup__conv3d_impls, .strided_out = true)
