#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, x[0] / x[1])
CUP__FLOATS_2(value_f32, p / q)

CUP__ELEMENT(slope, -x[2] * x[1] / x[0])
CUP__FLOATS_3(slope_f32, -r * q / p)

static cup_status gradient(cup__grad *g)
{
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(g->c, cup_div(g->c, g->d_out[0], g->in[1]), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup__div_grad(g->c, g->in[1], g->out[0], g->d_out[0]),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "div.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "div_fwd"};
static const cup__pointwise slope_kind = {.source = "div.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "div_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7", NULL}, {"5 3x5 3x5", NULL}, {"2x1 2x1025 2x1025", NULL}, {NULL, NULL}};

static const cup__sample grad_bench[] = {{"32768x3072 32768x3072 32768x3072", NULL},
                                         {NULL, NULL}};

const cup__op cup__op_div = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(1) | CUP__SAVE_OUT(0),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
    .domain = {{-2, 2}, {0.5, 2}},
};

const cup__op cup__op_div_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{0.5, 2}},
};
