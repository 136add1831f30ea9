#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(maximum, x[0] > x[1] || x[0] != x[0] ? x[0] : x[1])
CUP__FLOATS_2(maximum_f32, p > q || p != p ? p : q)
CUP__ELEMENT_I64(maximum_i64, x[0] > x[1] ? x[0] : x[1])

CUP__ELEMENT(slope, x[0] > x[1] ? x[2] : x[0] == x[1] ? 0.5 * x[2] : 0)
CUP__FLOATS_3(slope_f32, p > q ? r : p == q ? 0.5f * r : 0.0f)

static cup_status gradient(cup__grad *g)
{
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(g->c, cup__maximum_grad(g->c, g->in[0], g->in[1], g->d_out[0]),
                                 &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup__maximum_grad(g->c, g->in[1], g->in[0], g->d_out[0]),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "maximum.cu", .f64 = maximum, .f32 = maximum_f32,
                                    .i64 = maximum_i64, .entry = "maximum_fwd"};
static const cup__pointwise slope_kind = {.source = "maximum.cu", .knob = "GRAD", .f64 = slope,
                                          .f32 = slope_f32, .entry = "maximum_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7", NULL}, {"5 3x5 3x5", NULL}, {"2x1 2x1025 2x1025", NULL}, {NULL, NULL}};

static const cup__sample grad_bench[] = {{"32768x3072 32768x3072 32768x3072", NULL},
                                         {NULL, NULL}};

const cup__op cup__op_maximum = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};

const cup__op cup__op_maximum_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = grad_samples,
    .bench = grad_bench,
};
