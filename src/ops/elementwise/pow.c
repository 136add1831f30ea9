#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(value, pow(x[0], x[1]))
CUP__FLOATS_2(value_f32, __builtin_powf(p, q))

/* Both gradients; what is multiplied by 0 counts as 0 even where it is infinite. */
CUP__ELEMENT(base, x[1] == 0 ? 0 : x[2] * x[1] * pow(x[0], x[1] - 1))
CUP__FLOATS_3(base_f32, q == 0.0f ? 0.0f : r * q * __builtin_powf(p, q - 1.0f))
/* 0^b jumps at b = 0 from 0 to infinity; the slope is said to be 0 there, as it is above. */
CUP__ELEMENT(exponent,
             x[1] == 0 || (x[0] == 0 && x[1] == 1) ? 0 : x[2] * x[1] * log(x[0]))
CUP__FLOATS_3(exponent_f32,
              q == 0.0f || (p == 0.0f && q == 1.0f) ? 0.0f : r * q * cup__log_f32(p))

static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup__sum_to(c, cup__pow_base_grad(c, g->in[0], g->in[1], dy), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] =
            cup__sum_to(c, cup__pow_exponent_grad(c, g->in[0], g->out[0], dy), &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "pow.cu", .f64 = value, .f32 = value_f32,
                                    .entry = "pow_fwd"};
static const cup__pointwise base_kind = {.source = "pow.cu", .knob = "BASE", .f64 = base,
                                         .f32 = base_f32, .entry = "pow_base_bwd"};
static const cup__pointwise exponent_kind = {.source = "pow.cu", .knob = "EXPONENT",
                                             .f64 = exponent, .f32 = exponent_f32,
                                             .entry = "pow_exponent_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7", NULL}, {"5 3x5 3x5", NULL}, {"2x1 2x1025 2x1025", NULL}, {NULL, NULL}};

static const cup__sample grad_bench[] = {{"32768x3072 32768x3072 32768x3072", NULL},
                                         {NULL, NULL}};

const cup__op cup__op_pow = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(0),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
    .domain = {{0.1, 3}, {-3, 3}},
};

const cup__op cup__op_pow_base_grad = {
    CUP__POINTWISE(&base_kind),
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{0.1, 3}, {-3, 3}},
};

const cup__op cup__op_pow_exponent_grad = {
    CUP__POINTWISE(&exponent_kind),
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{0.1, 3}, {0.1, 3}},
};
