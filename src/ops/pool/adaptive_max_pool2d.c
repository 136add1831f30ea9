#include "dispatch/attributes.h"
#include "ops/pool/pool.h"

static cup_status gradient(cup__grad *g)
{
    const cup__adaptive_max_pool2d_attributes *a = g->attributes;
    const int64_t *side = &g->in_shape[0].size[a->channels_last ? 1 : 2];
    g->d_in[0] = cup__adaptive_max_pool2d_grad(g->c, g->d_out[0], g->out[1], a->channels_last,
                                               side[0], side[1]);
    return CUP_OK;
}

static const cup__adaptive_max_pool2d_attributes one = {{1}, 1, false}, last_one = {{1}, 1, true},
                                                 two = {{4, 3}, 2, false},
                                                 last_two = {{3, 5}, 2, true},
                                                 seven = {{7}, 1, false};
static const cup__sample samples[] = {{"2x3x7x7", &one},  {"2x7x5x8", &last_one},
                                      {"2x3x8x9", &two},  {"1x2x11x13", &two},
                                      {"2x9x8x6", &last_two}, {"1x2x3x5", &seven},
                                      {"0x3x8x8", &two},  {"1x2x40x70", &one},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"64x2048x7x7", &one}, {"64x512x13x13", &seven},
                                    {NULL, NULL}};

const cup__op cup__op_adaptive_max_pool2d = {
    .kind = CUP__POOL_ADAPTIVE | CUP__POOL_MAX,
    .infer = cup__pool_infer,
    .specification = cup__pool_specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(1),
    .impls = cup__adaptive_impls,
    .samples = samples,
    .bench = bench,
};

static const cup__adaptive_max_pool2d_grad_attributes nine = {false, 8, 9}, last = {true, 11, 4},
                                                      large = {false, 13, 13},
                                                      many_windows = {false, 2, 2},
                                                      many_sums = {false, 2, 248};
static const cup__sample grad_samples[] = {
    {"2x3x4x3 2x3x4x3", &nine}, {"2x3x4x5 2x3x4x5", &last}, {"1x3x16x20 1x3x16x20", &nine},
    {"1x2x3x16 1x2x3x16", &last}, {"0x3x4x3 0x3x4x3", &nine},
    {"1x1x12000x2 1x1x12000x2", &many_windows}, {"11x8x192x2 11x8x192x2", &many_sums},
    {NULL, NULL}};
static const cup__sample grad_bench[] = {{"64x512x7x7 64x512x7x7", &large}, {NULL, NULL}};

const cup__op cup__op_adaptive_max_pool2d_grad = {
    .kind = CUP__POOL_ADAPTIVE | CUP__POOL_MAX | CUP__POOL_GRAD,
    .infer = cup__pool_infer,
    .specification = cup__pool_grad_specification,
    .gradient = cup__pool_pick,
    .composed = cup__pool_pick,
    .saves = CUP__SAVE_IN(1),
    .impls = cup__adaptive_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-2, 2}, {0, 3}},
    .in_dtypes = {0, CUP__DTYPE(U8)},
};
