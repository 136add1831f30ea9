/* 1 / x and 1 / sqrt(x). */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, reciprocal_fwd, 1 / x[0], 1.0f / p, quotient_of((real)1, x[0]))
CUP__FORMULA(1, rsqrt_fwd, 1 / sqrt(x[0]), 1.0f / __builtin_sqrtf(p), rsqrt(x[0]))
CUP__FORMULA(2, rsqrt_bwd, -0.5 * x[1] * x[0] * x[0] * x[0], -0.5f * q * p * p * p,
             (real)-0.5 * x[1] * x[0] * x[0] * x[0])

/* -dy y / x, as that of a quotient. */
static cup_status reciprocal_gradient(cup__grad *g)
{
    g->d_in[0] = cup__div_grad(g->c, g->in[0], g->out[0], g->d_out[0]);
    return CUP_OK;
}

static cup_status reciprocal_composed(cup__grad *g)
{
    cup_tensor *y = g->out[0];
    g->d_in[0] = cup_neg(g->c, cup_mul(g->c, g->d_out[0], cup_square(g->c, y)));
    return CUP_OK;
}

const cup__op cup__op_reciprocal = {
    CUP__POINTWISE(&reciprocal_fwd_kind),
    .gradient = reciprocal_gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
    .composed = reciprocal_composed,
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
    .domain = {{0.25, 4}},
};

static cup_tensor *rsqrt_slope(cup_context *c, cup_tensor *y)
{
    return cup_scale(c, cup_mul(c, y, cup_square(c, y)), -0.5);
}

CUP__UNARY_TWICE(rsqrt, out, 0.05, 4, 0.5, 3)
