#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(sub, x[0] - x[1])
CUP__FLOATS_2(sub_f32, p - q)
CUP__ELEMENT_I64(sub_i64, (int64_t)((uint64_t)x[0] - (uint64_t)x[1]))

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup_neg(g->c, g->d_out[0]), &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "sub.cu", .f64 = sub, .f32 = sub_f32, .i64 = sub_i64,
                                    .entry = "sub_fwd"};

const cup__op cup__op_sub = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};
