#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

CUP__FOLD(mean, 0, acc + x, acc + x, acc / n)

static cup_status gradient(cup__grad *g)
{
    cup__shape one = {.dtype = g->in_shape[0].dtype};
    cup_tensor *share = cup__full(g->c, &one, 1 / (double)cup__reduce_length(g));
    g->d_in[0] = cup__reduce_spread(g, cup_mul(g->c, g->d_out[0], share));
    return CUP_OK;
}

const cup__op cup__op_mean = {
    CUP__REDUCE(&mean_fold),
    .gradient = gradient,
    .composed = gradient,
};
