#include "dispatch/attributes.h"
#include "ops/pool/pool.h"

static cup_status gradient(cup__grad *g)
{
    const cup__max_pool2d_attributes *a = g->attributes;
    const int64_t *side = &g->in_shape[0].size[a->channels_last ? 1 : 2];
    g->d_in[0] = cup__max_pool2d_grad(g->c, g->d_out[0], g->out[1], a->window, a->window_count,
                                      a->stride, a->stride_count, a->padding, a->padding_count,
                                      a->dilation, a->dilation_count, a->channels_last, side[0],
                                      side[1]);
    return CUP_OK;
}

#define TWO(a, b) {a, b}, 2
#define NONE {0}, 0
static const cup__max_pool2d_attributes two = {.window = {2}, .window_count = 1},
                                        last = {TWO(2, 2), NONE, NONE, NONE, false, true},
                                        three = {TWO(3, 3), TWO(2, 2), TWO(1, 1), NONE, false,
                                                 false},
                                        last_three = {TWO(3, 3), TWO(2, 2), TWO(1, 1), NONE, true,
                                                      true},
                                        odd = {TWO(3, 2), TWO(1, 3), TWO(1, 0), TWO(2, 1), true,
                                               false},
                                        wide = {TWO(1, 4), NONE, NONE, NONE, false, false},
                                        near = {TWO(3, 3), TWO(1, 1), TWO(1, 1), NONE, false,
                                                false},
                                        large = {TWO(17, 16), TWO(5, 1), TWO(8, 3), NONE, true,
                                                 false};
static const cup__sample samples[] = {{"1x1x2x2", &two},
                                      {"2x3x8x16", &two},
                                      {"1x2x5x7", &two},
                                      {"0x3x4x4", &two},
                                      {"1x3x64x130", &two},
                                      {"2x5x7x3", &last},
                                      {"1x8x6x32", &last},
                                      {"2x3x9x11", &three},
                                      {"3x6x7x5", &last_three},
                                      {"2x2x11x13", &odd},
                                      {"2x2x3x40", &wide},
                                      {"1x2x20x18", &large},
                                      {"2x3x9x16", &three},
                                      {"2x3x7x24", &near},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"32x64x128x128", &two},
                                    {"32x128x128x64", &last},
                                    {"64x64x112x112", &three},
                                    {"64x112x112x64", &last_three},
                                    {NULL, NULL}};

const cup__op cup__op_max_pool2d = {
    .kind = CUP__POOL_MAX,
    .infer = cup__pool_infer,
    .specification = cup__pool_specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(1),
    .impls = cup__pool_impls,
    .samples = samples,
    .bench = bench,
};

#define SIZED(name, window, stride, padding, dilation, last, height, width)                        \
    static const cup__max_pool2d_grad_attributes name = {window, stride, padding, dilation, last,  \
                                                         height, width}
SIZED(two_grad, TWO(2, 2), TWO(2, 2), NONE, NONE, false, 8, 16);
SIZED(rest_grad, TWO(2, 2), NONE, NONE, NONE, false, 5, 7);
SIZED(last_grad, TWO(2, 2), NONE, NONE, NONE, true, 7, 9);
SIZED(three_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), NONE, false, 9, 11);
SIZED(wide_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), NONE, false, 9, 16);
SIZED(near_grad, TWO(3, 3), TWO(1, 1), TWO(1, 1), NONE, false, 7, 24);
SIZED(pass_grad, TWO(3, 3), TWO(2, 2), TWO(1, 1), NONE, false, 112, 112);
SIZED(odd_grad, TWO(3, 2), TWO(1, 3), TWO(1, 0), TWO(2, 1), false, 11, 13);
SIZED(big_grad, TWO(2, 2), TWO(2, 2), NONE, NONE, false, 128, 128);
static const cup__sample grad_samples[] = {
    {"2x3x4x8 2x3x4x8", &two_grad},     {"1x2x2x3 1x2x2x3", &rest_grad},
    {"2x3x4x5 2x3x4x5", &last_grad},    {"1x3x4x16 1x3x4x16", &last_grad},
    {"2x3x5x6 2x3x5x6", &three_grad},   {"0x3x4x8 0x3x4x8", &two_grad},
    {"2x2x9x4 2x2x9x4", &odd_grad},     {"2x3x5x8 2x3x5x8", &wide_grad},
    {"2x3x7x24 2x3x7x24", &near_grad},  {NULL, NULL}};
static const cup__sample grad_bench[] = {{"32x64x64x64 32x64x64x64", &big_grad},
                                         {"64x64x56x56 64x64x56x56", &pass_grad},
                                         {NULL, NULL}};

const cup__op cup__op_max_pool2d_grad = {
    .kind = CUP__POOL_MAX | CUP__POOL_GRAD,
    .infer = cup__pool_infer,
    .specification = cup__pool_grad_specification,
    .gradient = cup__pool_pick,
    .composed = cup__pool_pick,
    .saves = CUP__SAVE_IN(1),
    .impls = cup__pool_grad_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-2, 2}, {0, 4}},
    .in_dtypes = {0, CUP__DTYPE(U8)},
};
