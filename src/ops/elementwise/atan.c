/* The angle of a slope, and of a point. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, atan_fwd, atan(x[0]), __builtin_atanf(p), atan(x[0]))
CUP__FORMULA(2, atan_bwd, x[1] / (1 + x[0] * x[0]), q / (1.0f + p * p),
             quotient_of(x[1], 1 + x[0] * x[0]))

static cup_tensor *atan_slope(cup_context *c, cup_tensor *x)
{
    return cup_reciprocal(c, cup_add(c, cup_square(c, x), cup__number(c, x, 1)));
}

CUP__UNARY_TWICE(atan, in, -4, 4, -4, 4)

CUP__FORMULA(2, atan2_fwd, atan2(x[0], x[1]), __builtin_atan2f(p, q), atan2(x[0], x[1]))

/* (other, one, dy): dy other / (other^2 + one^2), without squares that overflow; 0 at (0, 0), where
 * there is no slope. */
CUP__FORMULA(3, atan2_bwd,
             x[0] == 0 && x[1] == 0 ? 0 : x[2] * (x[0] / hypot(x[0], x[1])) / hypot(x[0], x[1]),
             p == 0.0f && q == 0.0f
                 ? 0.0f
                 : r * (p / __builtin_hypotf(p, q)) / __builtin_hypotf(p, q),
             x[0] == 0 && x[1] == 0 ? (real)0
                                    : x[2] * (x[0] / hypot(x[0], x[1])) / hypot(x[0], x[1]))

/* a is the height and b the way across. */
static cup_status atan2_gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *a = g->in[0], *b = g->in[1], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(c, cup__atan2_grad(c, b, a, dy), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(c, cup_neg(c, cup__atan2_grad(c, a, b, dy)), &g->in_shape[1]);
    return CUP_OK;
}

static cup_status atan2_composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *a = g->in[0], *b = g->in[1], *zero = cup__number(c, a, 0);
    cup_tensor *square = cup_add(c, cup_square(c, a), cup_square(c, b));
    cup_tensor *safe = cup_where(c, cup_equal(c, square, zero), cup__number(c, a, 1), square);
    cup_tensor *share = cup_div(c, g->d_out[0], safe);
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(c, cup_mul(c, share, b), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(c, cup_neg(c, cup_mul(c, share, a)), &g->in_shape[1]);
    return CUP_OK;
}

CUP__BINARY(atan2, .gradient = atan2_gradient, .composed = atan2_composed,
            .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1))

const cup__op cup__op_atan2_grad = {
    CUP__POINTWISE(&atan2_bwd_kind),
    .samples = cup__binary_grad_samples,
    .bench = cup__binary_grad_bench,
};
