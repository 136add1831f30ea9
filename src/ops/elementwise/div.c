#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(2, div_fwd, x[0] / x[1], p / q, quotient_of(x[0], x[1]))
CUP__FORMULA(3, div_bwd, -x[2] * x[1] / x[0], -r * q / p, -x[2] * quotient_of(x[1], x[0]))

static cup_status gradient(cup__grad *g)
{
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(g->c, cup_div(g->c, g->d_out[0], g->in[1]), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup__div_grad(g->c, g->in[1], g->out[0], g->d_out[0]),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *share = cup_div(c, g->d_out[0], g->in[1]);
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(c, share, &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(c, cup_neg(c, cup_mul(c, share, g->out[0])), &g->in_shape[1]);
    return CUP_OK;
}

CUP__BINARY(div, .gradient = gradient, .composed = composed,
            .saves = CUP__SAVE_IN(1) | CUP__SAVE_OUT(0), .domain = {{-2, 2}, {0.5, 2}})

const cup__op cup__op_div_grad = {
    CUP__POINTWISE(&div_bwd_kind),
    .samples = cup__binary_grad_samples,
    .bench = cup__binary_grad_bench,
    .domain = {{0.5, 2}},
};
