#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__reduce_spread(g, g->d_out[0]);
    return CUP_OK;
}

const cup__op cup__op_sum = {
    CUP__REDUCE(CUP__FOLD_SUM),
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER},
    .gradient = gradient,
};
