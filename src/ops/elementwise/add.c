#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(add_i64, (int64_t)((uint64_t)x[0] + (uint64_t)x[1]))
CUP__FORMULA(2, add_fwd, x[0] + x[1], p + q, x[0] + x[1], .i64 = add_i64)

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[0]);
    g->d_in[1] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[1]);
    return CUP_OK;
}

CUP__BINARY(add, .gradient = gradient, .composed = gradient)
