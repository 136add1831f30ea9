#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(mul_i64, (int64_t)((uint64_t)x[0] * (uint64_t)x[1]))
CUP__FORMULA(2, mul_fwd, x[0] * x[1], p * q, x[0] * x[1], .i64 = mul_i64)

static cup_status gradient(cup__grad *g)
{
    for (int i = 0; i < 2; i++)
        if (g->wanted[i])
            g->d_in[i] =
                cup__sum_to(g->c, cup_mul(g->c, g->d_out[0], g->in[1 - i]), &g->in_shape[i]);
    return CUP_OK;
}

CUP__BINARY(mul, .gradient = gradient, .composed = gradient,
            .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1))
