#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"

static int64_t add(int64_t acc, int64_t x)
{
    return (int64_t)((uint64_t)acc + (uint64_t)x);
}

CUP__FOLD(sum, 0, acc + x, acc + x, acc, .i64 = add, .widens = true)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__reduce_spread(g, g->d_out[0]);
    return CUP_OK;
}

const cup__op cup__op_sum = {
    CUP__REDUCE(&sum_fold),
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER},
    .gradient = gradient,
    .composed = gradient,
};
