#include "dispatch/attributes.h"
#include "ops/activation/silu.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(swiglu, cup__silu(x[0]) * x[1])
CUP__FLOATS_2(swiglu_f32, cup__silu_f32(p) * q)

CUP__ELEMENT(gate_slope, x[2] * x[1] * cup__silu_slope(x[0]))
CUP__FLOATS_3(gate_slope_f32, r * q * cup__silu_slope_f32(p))
CUP__ELEMENT(up_slope, x[2] * cup__silu(x[0]))
CUP__FLOATS_3(up_slope_f32, r * cup__silu_f32(p))

static cup_status gradient(cup__grad *g)
{
    cup_tensor *d_gate = NULL, *d_up = NULL;
    CUP_TRY(cup__swiglu_grad(g->c, g->in[0], g->in[1], g->d_out[0], &d_gate, &d_up));
    g->d_in[0] = cup__sum_to(g->c, d_gate, &g->in_shape[0]);
    g->d_in[1] = cup__sum_to(g->c, d_up, &g->in_shape[1]);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *gate = cup__widen(c, g->in[0]), *up = cup__widen(c, g->in[1]), *d_gate = NULL;
    cup_tensor *dy = cup__widen(c, g->d_out[0]), *d_up = cup_mul(c, dy, cup_silu(c, gate));
    CUP_TRY(cup__composed_of(c, &cup__rows[CUP__OP_silu], &gate, 1, NULL, cup_mul(c, dy, up),
                             &d_gate));
    g->d_in[0] = cup__sum_to(c, cup_cast(c, d_gate, g->in_shape[0].dtype), &g->in_shape[0]);
    g->d_in[1] = cup__sum_to(c, cup_cast(c, d_up, g->in_shape[1].dtype), &g->in_shape[1]);
    return c->error.status;
}

static const cup__pointwise kind = {.source = "swiglu.cu", .f64 = swiglu, .f32 = swiglu_f32,
                                    .entry = "swiglu_fwd"};
static const cup__pointwise slope_kind = {.source = "swiglu.cu",
                                          .knob = "GRAD",
                                          .f64 = gate_slope,
                                          .f32 = gate_slope_f32,
                                          .f64_second = up_slope,
                                          .f32_second = up_slope_f32,
                                          .entry = "swiglu_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7", NULL}, {"3x5 5 3x5", NULL}, {"2x1025 2x1025 2x1025", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x14336 8192x14336", NULL}, {NULL, NULL}};
static const cup__sample grad_bench[] = {{"8192x14336 8192x14336 8192x14336", NULL}, {NULL, NULL}};

const cup__op cup__op_swiglu = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .again = cup__call_again,
    .samples = cup__binary_samples,
    .bench = bench,
    .domain = {{-6, 6}},
};

const cup__op cup__op_swiglu_grad = {
    CUP__POINTWISE(&slope_kind),
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-6, 6}},
};
