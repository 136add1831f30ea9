#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

CUP__FOLD_STATE(norm, "norm_state.cuh", 0, acc + x * x, acc + x * x, acc + x, sqrt(acc))

/* (x, y, dy): x / y is the direction of steepest growth, and 0 where all elements are 0. */
CUP__FORMULA(3, norm_bwd, x[1] > 0 ? x[2] * (x[0] / x[1]) : 0, q > 0.0f ? r * (p / q) : 0.0f,
             x[1] > 0 ? x[2] * (x[0] / x[1]) : (real)0)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__norm_grad(g->c, g->in[0], cup__reduce_kept(g, g->out[0]),
                                cup__reduce_kept(g, g->d_out[0]));
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *y = cup__reduce_kept(g, g->out[0]), *dy = cup__reduce_kept(g, g->d_out[0]);
    cup_tensor *zero = cup__number(c, dy, 0), *some = cup_greater(c, y, zero);
    cup_tensor *size = cup_where(c, some, y, cup__number(c, dy, 1));
    g->d_in[0] = cup_mul(c, cup_where(c, some, dy, zero), cup_div(c, g->in[0], size));
    return CUP_OK;
}

const cup__op cup__op_norm = {
    CUP__REDUCE(&norm_fold),
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
};

const cup__op cup__op_norm_grad = {
    CUP__POINTWISE(&norm_bwd_kind),
    .samples = cup__reduce_grad_samples,
    .domain = {{-2, 2}, {0.5, 3}},
};
