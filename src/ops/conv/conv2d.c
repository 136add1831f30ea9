#include "dispatch/attributes.h"
#include "ops/conv/conv.h"

typedef cup__conv2d_attributes attributes;

static cup_status gradient(cup__grad *g)
{
    const attributes *a = g->attributes;
    const int64_t *x = g->in_shape[0].size;
    cup_tensor *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup__conv2d_input_grad(g->c, dy, g->in[1], a->stride, a->stride_count,
                                            a->padding, a->padding_count, a->same, a->dilation,
                                            a->dilation_count, a->groups, x[2], x[3]);
    if (g->wanted[1])
        cup__conv_weight_back(g, dy, g->in[0], 2);
    if (g->in_count > 2 && g->wanted[2])
        g->d_in[2] = cup_sum(g->c, dy, (int64_t[]){0, 2, 3}, 3, false);
    return g->c->error.status;
}

#define ONE(a) {a}, 1
#define TWO(a, b) {a, b}, 2
#define FOUR(a, b, c, d) {a, b, c, d}, 4
#define NONE {0}, 0
static const attributes plain = {NONE, NONE, false, NONE, 1},
                        three = {NONE, ONE(1), false, NONE, 1},
                        half = {ONE(2), ONE(1), false, NONE, 1},
                        skip = {ONE(2), NONE, false, NONE, 1},
                        first = {ONE(2), ONE(3), false, NONE, 1},
                        far = {TWO(5, 4), TWO(1, 0), false, NONE, 1},
                        odd = {TWO(1, 3), FOUR(2, 0, 1, 3), false, TWO(2, 3), 1},
                        same = {NONE, NONE, true, TWO(2, 1), 1},
                        gaps = {NONE, FOUR(2, 0, 1, 3), false, TWO(2, 3), 1},
                        same_half = {ONE(2), NONE, true, NONE, 1},
                        wide = {NONE, TWO(3, 4), false, NONE, 1},
                        two_groups = {ONE(2), ONE(1), false, NONE, 2},
                        three_groups = {NONE, ONE(1), false, NONE, 3},
                        four_groups = {NONE, ONE(1), false, NONE, 4},
                        by_channel = {NONE, ONE(1), false, NONE, 6},
                        by_channel_half = {TWO(2, 1), ONE(2), false, TWO(1, 2), 5},
                        by_channel_many = {NONE, ONE(3), false, NONE, 40};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1", &plain},     {"2x3x5x7 4x3x3x3 4", &plain},
    {"2x3x8x9 4x3x3x3 -", &three},     {"1x7x9x8 5x7x3x3 5", &half},
    {"2x5x6x7 3x5x1x1 3", &plain},     {"3x4x7x9 6x4x1x1 6", &skip},
    {"1x3x21x23 8x3x7x7 8", &first},   {"1x2x17x19 3x2x2x3 3", &far},
    {"2x3x11x13 4x3x3x2 4", &odd},     {"1x3x9x10 4x3x3x4 4", &same},
    {"1x3x9x10 4x3x3x4 4", &same_half}, {"1x2x1x2 3x2x5x6 3", &wide},
    {"0x3x5x5 4x3x3x3 4", &three},     {"2x3x0x5 4x3x3x3 4", &wide},
    {"2x0x5x5 4x0x3x3 4", &three},     {"2x3x5x5 0x3x3x3 0", &three},
    {"2x6x7x8 4x3x3x3 4", &two_groups}, {"1x6x5x9 9x2x3x3 -", &three_groups},
    {"2x6x9x10 6x1x3x3 6", &by_channel}, {"1x6x7x8 12x1x3x3 12", &by_channel},
    {"2x5x9x12 5x1x5x3 5", &by_channel_half}, {"1x40x8x9 40x1x7x7 40", &by_channel_many},
    {"1x1000x3x3 5x1000x1x1 5", &plain}, {"1x3x4x5 1000x3x3x3 1000", &three},
    {"1x64x9x11 72x64x3x3 72", &three}, {"1x32x20x18 130x32x3x3 130", &half},
    {"3x16x16x24 24x16x3x3 24", &three}, {"1x1x40x70 3x1x5x4 3", &plain},
    {"1x32x7x9 64x16x3x3 64", &two_groups}, {"2x20x8x9 24x20x3x3 24", &three},
    {"1x32x14x13 128x32x3x3 128", &three}, {"1x256x9x7 64x256x1x1 64", &plain},
    {"3x72x13x11 96x72x2x2 96", &half}, {"1x16x33x31 200x16x3x2 -", &odd},
    {"4x64x7x7 96x64x3x3 -", &three}, {"2x24x9x12 40x24x1x1 40", &skip},
    {"3x3x23x21 64x3x7x7 64", &first}, {"2x3x14x15 32x3x3x3 -", &three},
    {"2x7x11x9 24x7x2x5 24", &plain}, {"1x1x20x19 16x1x5x3 -", &half},
    {"1x64x6x5 64x64x3x3 64", &three}, {"1x512x2x2 512x512x3x3 -", &three},
    {"1x128x7x8 128x64x3x3 128", &two_groups}, {"2x32x9x10 32x8x3x3 32", &four_groups},
    {"2x64x9x11 72x16x3x3 -", &four_groups}, {"2x64x9x11 3x64x3x3 3", &three},
    {"3x3x13x11 64x3x1x1 64", &plain}, {"2x2x9x8 65x2x1x1 65", &plain},
    {"2x64x12x11 2x64x1x1 2", &plain}, {"2x360x7x9 3x360x1x1 -", &plain},
    {"2x8x6x7 264x8x1x1 -", &plain},
    {"2x40x9x17 2x40x5x5 2", &three}, {"1x16x12x130 8x16x3x3 8", &three},
    {"1x128x11x70 4x128x3x3 -", &three}, {"2x32x9x17 3x32x2x3 3", &gaps},
    {"1x24x3x5 2x24x5x6 2", &wide}, {"1x64x9x10 4x64x3x4 4", &same},
    {"1x16x3x700 2x16x3x3 -", &three}, {"9x72x2x3 1x72x7x3 1", &wide}, {NULL, NULL}};
static const cup__sample bench[] = {{"64x64x128x128 128x64x3x3 -", &three},
                                    {"256x3x224x224 64x3x7x7 -", &first},
                                    {"256x64x56x56 64x64x3x3 -", &three},
                                    {"256x256x56x56 64x256x1x1 -", &plain},
                                    {"256x512x7x7 512x512x3x3 -", &three},
                                    {"64x40x56x56 40x1x7x7 -", &by_channel_many},
                                    {"64x64x56x56 64x16x3x3 -", &four_groups},
                                    {"64x64x128x128 2x64x1x1 -", &plain},
                                    {"64x64x128x128 3x64x3x3 3", &three},
                                    {NULL, NULL}};

/* Sums in blocks of at most 256 products, however many there are. */
CUP__CONV_OP(conv2d, CUP__CONV_FORWARD, , cup__conv_impls, .strided_out = true)
