#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

/* What is multiplied by 0 counts as 0 even where it is infinite; and the slope along b of 0^b,
 * which jumps at b = 0 from 0 to infinity, is said to be 0 there, as it is above. */
CUP__FORMULA(2, pow_fwd, pow(x[0], x[1]), __builtin_powf(p, q), pow(x[0], x[1]))
CUP__FORMULA(3, pow_base_bwd, x[1] == 0 ? 0 : x[2] * x[1] * pow(x[0], x[1] - 1),
             q == 0.0f ? 0.0f : r * q * __builtin_powf(p, q - 1.0f),
             x[1] == 0 ? (real)0 : x[2] * x[1] * pow(x[0], x[1] - 1))
CUP__FORMULA(3, pow_exponent_bwd,
             x[1] == 0 || (x[0] == 0 && x[1] == 1) ? 0 : x[2] * x[1] * log(x[0]),
             q == 0.0f || (p == 0.0f && q == 1.0f) ? 0.0f : r * q * cup__log_f32(p),
             x[1] == 0 || (x[0] == 0 && x[1] == 1) ? (real)0 : x[2] * x[1] * log_of(x[0]))

static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup__sum_to(c, cup__pow_base_grad(c, g->in[0], g->in[1], dy), &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] =
            cup__sum_to(c, cup__pow_exponent_grad(c, g->in[0], g->out[0], dy), &g->in_shape[1]);
    return CUP_OK;
}

/* Where b a^(b-1) or log a has no value although the product it stands in is 0, another takes its
 * place. */
static cup_status composed(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *a = g->in[0], *b = g->in[1], *y = g->out[0], *dy = g->d_out[0];
    cup_tensor *zero = cup__number(c, dy, 0), *one = cup__number(c, dy, 1);
    cup_tensor *at_zero = cup_equal(c, a, zero);
    if (g->wanted[0]) {
        cup_tensor *safe = cup_where(c, cup_equal(c, b, zero), one, b);
        cup_tensor *power = cup_pow(c, a, cup_sub(c, cup_where(c, at_zero, safe, b), one));
        g->d_in[0] = cup__sum_to(c, cup_mul(c, cup_mul(c, dy, b), power), &g->in_shape[0]);
    }
    if (g->wanted[1]) {
        cup_tensor *safe = cup_where(c, cup_less_equal(c, y, one), one, a);
        cup_tensor *log = cup_log(c, cup_where(c, at_zero, safe, a));
        g->d_in[1] = cup__sum_to(c, cup_mul(c, cup_mul(c, dy, y), log), &g->in_shape[1]);
    }
    return CUP_OK;
}

CUP__BINARY(pow, .gradient = gradient, .composed = composed, .domain = {{0.1, 3}, {-3, 3}},
            .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(0))

const cup__op cup__op_pow_base_grad = {
    CUP__POINTWISE(&pow_base_bwd_kind),
    .samples = cup__binary_grad_samples,
    .bench = cup__binary_grad_bench,
    .domain = {{0.1, 3}, {-3, 3}},
};

const cup__op cup__op_pow_exponent_grad = {
    CUP__POINTWISE(&pow_exponent_bwd_kind),
    .samples = cup__binary_grad_samples,
    .bench = cup__binary_grad_bench,
    .domain = {{0.1, 3}, {0.1, 3}},
};
