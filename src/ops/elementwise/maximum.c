/* The larger and the smaller of two, whose gradients are one op. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT_I64(maximum_i64, x[0] > x[1] ? x[0] : x[1])
CUP__ELEMENT_I64(minimum_i64, x[0] < x[1] ? x[0] : x[1])
CUP__FORMULA(2, maximum_fwd, x[0] > x[1] || x[0] != x[0] ? x[0] : x[1],
             p > q || p != p ? p : q, x[0] > x[1] || x[0] != x[0] ? x[0] : x[1],
             .i64 = maximum_i64)
CUP__FORMULA(2, minimum_fwd, x[0] < x[1] || x[0] != x[0] ? x[0] : x[1],
             p < q || p != p ? p : q, x[0] < x[1] || x[0] != x[0] ? x[0] : x[1],
             .i64 = minimum_i64)
CUP__FORMULA(3, maximum_bwd, x[0] > x[1] ? x[2] : x[0] == x[1] ? 0.5 * x[2] : 0,
             p > q ? r : p == q ? 0.5f * r : 0.0f,
             x[0] > x[1] ? x[2] : x[0] == x[1] ? (real)0.5 * x[2] : (real)0)

/* `flipped`: of the smaller one. */
static cup_status share(cup__grad *g, int flipped)
{
    for (int i = 0; i < 2; i++) {
        int own = i ^ flipped;
        if (g->wanted[i])
            g->d_in[i] = cup__sum_to(
                g->c, cup__maximum_grad(g->c, g->in[own], g->in[1 - own], g->d_out[0]),
                &g->in_shape[i]);
    }
    return CUP_OK;
}

static cup_status maximum_gradient(cup__grad *g)
{
    return share(g, 0);
}

static cup_status minimum_gradient(cup__grad *g)
{
    return share(g, 1);
}

static cup_status share_composed(cup__grad *g, int flipped)
{
    cup_context *c = g->c;
    cup_tensor *dy = g->d_out[0], *zero = cup__number(c, dy, 0);
    cup_tensor *half = cup_where(c, cup_equal(c, g->in[0], g->in[1]), cup_scale(c, dy, 0.5), zero);
    for (int i = 0; i < 2; i++) {
        int own = i ^ flipped;
        cup_tensor *first = cup_greater(c, g->in[own], g->in[1 - own]);
        if (g->wanted[i])
            g->d_in[i] = cup__sum_to(c, cup_where(c, first, dy, half), &g->in_shape[i]);
    }
    return CUP_OK;
}

static cup_status maximum_composed(cup__grad *g)
{
    return share_composed(g, 0);
}

static cup_status minimum_composed(cup__grad *g)
{
    return share_composed(g, 1);
}

#define BOTH CUP__SAVE_IN(0) | CUP__SAVE_IN(1)
CUP__BINARY(maximum, .gradient = maximum_gradient, .composed = maximum_composed, .saves = BOTH)
CUP__BINARY(minimum, .gradient = minimum_gradient, .composed = minimum_composed, .saves = BOTH)

const cup__op cup__op_maximum_grad = {
    CUP__POINTWISE(&maximum_bwd_kind),
    .samples = cup__binary_grad_samples,
    .bench = cup__binary_grad_bench,
};
