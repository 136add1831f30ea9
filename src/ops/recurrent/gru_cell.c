#include <math.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/recurrent/cells.h"

CUP__CELL(cell, GRU_CELL, 7, 1)
CUP__CELL(slopes, GRU_SLOPES, 8, 7)
const cup__cell cup__cell_gru = {{3, 3, 1}, {1}, cell_f64, cell_f32};
const cup__cell cup__cell_gru_slopes = {{3, 3, 1, 1}, {3, 3, 1}, slopes_f64, slopes_f32};

static cup_status gradient(cup__grad *g)
{
    return cup__gru_cell_grad(g->c, g->in[0], g->in[1], g->in[2], g->d_out[0], &g->d_in[0],
                              &g->d_in[1], &g->d_in[2]);
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *in[3], *s[2], *d[3], *dy = cup__widen(c, g->d_out[0]);
    for (int i = 0; i < 3; i++)
        in[i] = cup__widen(c, g->in[i]);
    for (int i = 0; i < 2; i++)
        s[i] = cup_sigmoid(c, cup_add(c, cup__cell_gate(c, in[0], i, 3),
                                      cup__cell_gate(c, in[1], i, 3)));
    cup_tensor *back = cup__cell_gate(c, in[1], 2, 3), *one = cup__number(c, in[2], 1);
    cup_tensor *n = cup_tanh(c, cup_add(c, cup__cell_gate(c, in[0], 2, 3),
                                        cup_mul(c, s[0], back)));
    cup_tensor *slope = cup_mul(c, cup_mul(c, dy, cup_sub(c, one, s[1])),
                                cup_sub(c, one, cup_square(c, n)));
    d[0] = cup_mul(c, cup_mul(c, slope, back), cup__cell_slope(c, s[0]));
    d[1] = cup_mul(c, cup_mul(c, dy, cup_sub(c, in[2], n)), cup__cell_slope(c, s[1]));
    d[2] = slope;
    g->d_in[0] = cup__cell_join(g, 0, d, 3);
    d[2] = cup_mul(c, slope, s[0]);
    g->d_in[1] = cup__cell_join(g, 1, d, 3);
    g->d_in[2] = cup_cast(c, cup_mul(c, dy, s[1]), g->in_shape[2].dtype);
    return c->error.status;
}

static const cup__sample samples[] = {{"1x3 1x3 1x1", NULL},    {"3x15 3x15 3x5", NULL},
                                      {"0x6 0x6 0x2", NULL},    {"2x3075 2x3075 2x1025", NULL},
                                      {"65x99 65x99 65x33", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"64x3072 64x3072 64x1024", NULL}, {NULL, NULL}};
static const cup__sample grad_samples[] = {{"3x15 3x15 3x5 3x5", NULL},
                                           {"2x3075 2x3075 2x1025 2x1025", NULL}, {NULL, NULL}};
static const cup__sample grad_bench[] = {{"64x3072 64x3072 64x1024 64x1024", NULL}, {NULL, NULL}};

const cup__op cup__op_gru_cell = {
    .kind = CUP__CELL_GRU,
    .infer = cup__cell_infer,
    .specification = cup__cell_specification,
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2),
    .impls = cup__cell_impls,
    .samples = samples,
    .bench = bench,
};

const cup__op cup__op_gru_cell_grad = {
    .kind = CUP__CELL_GRU_GRAD,
    .infer = cup__cell_infer,
    .specification = cup__cell_specification,
    .impls = cup__cell_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-6, 6}, {-6, 6}, {-2, 2}},
    .tolerance = 16,
};
