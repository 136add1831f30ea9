#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

CUP__FOLD(largest, LOWEST, maximum(acc, x), maximum(acc, x), isinf(acc) ? 0 : acc)
CUP__FOLD_STATE(logsumexp, "logsumexp_state.cuh", 0, acc + exp(x - shift),
                acc + (double)cup__exp_f32((float)(x - shift)), acc + x, shift + log(acc),
                .first = &largest_fold)

/* (x, y, dy): dy times the softmax, for y at least as large as x. */
CUP__FORMULA(3, logsumexp_bwd, x[2] * exp(x[0] - x[1]), r * cup__exp_f32(p - q),
             x[2] * exp_of(x[0] - x[1]))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__logsumexp_grad(g->c, g->in[0], cup__reduce_kept(g, g->out[0]),
                                     cup__reduce_kept(g, g->d_out[0]));
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *y = cup__reduce_kept(g, g->out[0]), *dy = cup__reduce_kept(g, g->d_out[0]);
    g->d_in[0] = cup_mul(c, dy, cup_exp(c, cup_sub(c, g->in[0], y)));
    return CUP_OK;
}

const cup__op cup__op_logsumexp = {
    CUP__REDUCE(&logsumexp_fold),
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
};

const cup__op cup__op_logsumexp_grad = {
    CUP__POINTWISE(&logsumexp_bwd_kind),
    .samples = cup__reduce_grad_samples,
    .domain = {{-2, 2}, {2, 6}},
    .tolerance = 8, /* the rounding of x - y, at most 8, comes through the exponential */
};
