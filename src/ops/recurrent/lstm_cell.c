#include <math.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/recurrent/cells.h"

CUP__CELL(cell, LSTM_CELL, 5, 2)
CUP__CELL(slopes, LSTM_SLOPES, 7, 5)
const cup__cell cup__cell_lstm = {{4, 1}, {1, 1}, cell_f64, cell_f32};
const cup__cell cup__cell_lstm_slopes = {{4, 1, 1, 1}, {4, 1}, slopes_f64, slopes_f32};

static cup_status gradient(cup__grad *g)
{
    return cup__lstm_cell_grad(g->c, g->in[0], g->in[1], g->d_out[0], g->d_out[1], &g->d_in[0],
                               &g->d_in[1]);
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *gates = cup__widen(c, g->in[0]), *cell = cup__widen(c, g->in[1]), *s[4], *d[4];
    for (int i = 0; i < 4; i++)
        s[i] = (i == 2 ? cup_tanh : cup_sigmoid)(c, cup__cell_gate(c, gates, i, 4));
    cup_tensor *t = cup_tanh(c, cup_add(c, cup_mul(c, s[1], cell), cup_mul(c, s[0], s[2])));
    cup_tensor *zero = cup__number(c, cell, 0), *one = cup__number(c, cell, 1);
    cup_tensor *dh = g->d_out[0] ? cup__widen(c, g->d_out[0]) : zero;
    cup_tensor *next = g->d_out[1] ? cup__widen(c, g->d_out[1]) : zero;
    cup_tensor *through = cup_mul(c, cup_mul(c, dh, s[3]), cup_sub(c, one, cup_square(c, t)));
    cup_tensor *slope = cup_add(c, next, through);
    d[0] = cup_mul(c, cup_mul(c, slope, s[2]), cup__cell_slope(c, s[0]));
    d[1] = cup_mul(c, cup_mul(c, slope, cell), cup__cell_slope(c, s[1]));
    d[2] = cup_mul(c, cup_mul(c, slope, s[0]), cup_sub(c, one, cup_square(c, s[2])));
    d[3] = cup_mul(c, cup_mul(c, dh, t), cup__cell_slope(c, s[3]));
    g->d_in[0] = cup__cell_join(g, 0, d, 4);
    g->d_in[1] = cup_cast(c, cup_mul(c, slope, s[1]), g->in_shape[1].dtype);
    return c->error.status;
}

static const cup__sample samples[] = {{"1x4 1x1", NULL},      {"3x20 3x5", NULL},
                                      {"0x8 0x2", NULL},      {"5x0 5x0", NULL},
                                      {"2x4100 2x1025", NULL}, {"65x132 65x33", NULL},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"64x4096 64x1024", NULL}, {NULL, NULL}};
static const cup__sample grad_samples[] = {{"3x20 3x5 3x5 3x5", NULL}, {"3x20 3x5 - 3x5", NULL},
                                           {"3x20 3x5 3x5 -", NULL},
                                           {"2x4100 2x1025 2x1025 2x1025", NULL}, {NULL, NULL}};
static const cup__sample grad_bench[] = {{"64x4096 64x1024 64x1024 64x1024", NULL}, {NULL, NULL}};

const cup__op cup__op_lstm_cell = {
    .kind = CUP__CELL_LSTM,
    .infer = cup__cell_infer,
    .specification = cup__cell_specification,
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .impls = cup__cell_impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-4, 4}, {-2, 2}},
};

const cup__op cup__op_lstm_cell_grad = {
    .kind = CUP__CELL_LSTM_GRAD,
    .infer = cup__cell_infer,
    .specification = cup__cell_specification,
    .impls = cup__cell_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-12, 12}, {-2, 2}},
    .tolerance = 16,
};
