#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/elementwise/pointwise.h"

CUP__ELEMENT(gelu_fwd_f64, cup__gelu(x[0]))
CUP__ELEMENT(gelu_bwd_f64, x[1] * cup__gelu_slope(x[0]))

CUP__FUSED static void gelu_fwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0];
    for (int64_t i = 0; i < count; i++)
        y[i] = cup__gelu_f32(in[i]);
}

CUP__FUSED static void gelu_bwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0], *dy = x[1];
    for (int64_t i = 0; i < count; i++)
        y[i] = dy[i] * cup__gelu_slope_f32(in[i]);
}

CUP__KERNEL(gelu_fwd, gelu_of(x[0]))
CUP__KERNEL(gelu_bwd, x[1] * gelu_slope_of(x[0]))
static cup_tensor *gelu_slope(cup_context *c, cup_tensor *x)
{
    cup_tensor *one = cup__number(c, x, 1), *squares = cup_mul(c, x, x);
    cup_tensor *cubic = cup_add(c, one, cup_scale(c, squares, CUP__GELU_CUBIC));
    cup_tensor *s = cup_sigmoid(c, cup_scale(c, cup_mul(c, x, cubic), 2 * CUP__GELU_ROOT));
    cup_tensor *du = cup_add(c, one, cup_scale(c, squares, 3 * CUP__GELU_CUBIC));
    cup_tensor *rest = cup_mul(c, cup_mul(c, x, du), cup_sub(c, one, s));
    return cup_mul(c, s, cup_add(c, one, cup_scale(c, rest, 2 * CUP__GELU_ROOT)));
}

/* For -6, e^-2u carries the rounding of u about 24-fold. */
CUP__UNARY_TWICE(gelu, in, -6, 6, -6, 6, .tolerance = 16)
