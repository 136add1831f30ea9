#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(neg, -x[0])
CUP__FLOATS_1(neg_f32, -p)
CUP__ELEMENT_I64(neg_i64, (int64_t)(0 - (uint64_t)x[0]))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup_neg(g->c, g->d_out[0]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "neg.cu", .f64 = neg, .f32 = neg_f32, .i64 = neg_i64,
                                    .entry = "neg_fwd"};

const cup__op cup__op_neg = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .samples = cup__unary_samples,
    .bench = cup__unary_bench,
};
