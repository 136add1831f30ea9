#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(minimum, x[0] < x[1] || x[0] != x[0] ? x[0] : x[1])
CUP__FLOATS_2(minimum_f32, p < q || p != p ? p : q)
CUP__ELEMENT_I64(minimum_i64, x[0] < x[1] ? x[0] : x[1])

static cup_status gradient(cup__grad *g)
{
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(g->c, cup__maximum_grad(g->c, g->in[1], g->in[0], g->d_out[0]),
                                 &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c, cup__maximum_grad(g->c, g->in[0], g->in[1], g->d_out[0]),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "minimum.cu", .f64 = minimum, .f32 = minimum_f32,
                                    .i64 = minimum_i64, .entry = "minimum_fwd"};

const cup__op cup__op_minimum = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};
