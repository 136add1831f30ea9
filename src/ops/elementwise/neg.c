#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(neg_i64, (int64_t)(0 - (uint64_t)x[0]))
CUP__FORMULA(1, neg_fwd, -x[0], -p, -x[0], .i64 = neg_i64)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_neg(g->c, g->d_out[0]);
    return CUP_OK;
}

const cup__op cup__op_neg = {
    CUP__POINTWISE(&neg_fwd_kind),
    .gradient = gradient,
    .composed = gradient,
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};
