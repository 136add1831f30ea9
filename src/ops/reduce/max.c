/* The largest and the smallest element, and the gradient that both share. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

static int64_t larger(int64_t acc, int64_t x)
{
    return x > acc ? x : acc;
}

static int64_t smaller(int64_t acc, int64_t x)
{
    return x < acc ? x : acc;
}

CUP__FOLD(max, LOWEST, maximum(acc, x), maximum(acc, x), acc, .i64 = larger,
          .needs_elements = true)
CUP__FOLD(min, HIGHEST, minimum(acc, x), minimum(acc, x), acc, .i64 = smaller,
          .needs_elements = true)

CUP__FORMULA(2, extreme_mask, x[0] == x[1] ? 1 : 0, p == q ? 1.0f : 0.0f,
             x[0] == x[1] ? (real)1 : (real)0)

/* (x, y, dy, n): what an element gets of the gradient, shared among the n that are extreme. */
CUP__ELEMENT(extreme_bwd_f64, x[0] == x[1] ? x[2] / x[3] : 0)

CUP__WIDE static void extreme_bwd_f32(float *y, const float *const *x, int64_t count,
                                      const double *a)
{
    (void)a;
    const float *in = x[0], *extreme = x[1], *dy = x[2], *n = x[3];
    for (int64_t i = 0; i < count; i++)
        y[i] = in[i] == extreme[i] ? dy[i] / n[i] : 0.0f;
}

CUP__KERNEL(extreme_bwd, x[0] == x[1] ? x[2] / x[3] : (real)0)

static cup_status gradient(cup__grad *g)
{
    const cup__sum_attributes *a = g->attributes;
    cup_tensor *y = cup__reduce_kept(g, g->out[0]), *dy = cup__reduce_kept(g, g->d_out[0]);
    cup_tensor *mask = cup__extreme_mask(g->c, g->in[0], y);
    cup_tensor *n = cup_sum(g->c, mask, a->axes, a->axes_count, true);
    g->d_in[0] = cup__extreme_grad(g->c, g->in[0], y, dy, n);
    return CUP_OK;
}

static cup_status composed(cup__grad *g)
{
    const cup__sum_attributes *a = g->attributes;
    cup_context *c = g->c;
    cup_tensor *y = cup__reduce_kept(g, g->out[0]), *dy = cup__reduce_kept(g, g->d_out[0]);
    cup_tensor *zero = cup__number(c, dy, 0), *is = cup_equal(c, g->in[0], y);
    cup_tensor *n = cup_sum(c, cup_where(c, is, cup__number(c, dy, 1), zero), a->axes,
                            a->axes_count, true);
    g->d_in[0] = cup_where(c, is, cup_div(c, dy, n), zero);
    return CUP_OK;
}

static const cup__sample grad_samples[] = {
    {"7 7 7 7", NULL}, {"3x5 3x1 3x1 3x1", NULL}, {"2x1025 2x1 2x1 2x1", NULL}, {NULL, NULL}};

#define EXTREME(of)                                                                                \
    CUP__REDUCE(of), .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER},                       \
                     .gradient = gradient, .composed = composed,                                   \
                     .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0)

const cup__op cup__op_max = {EXTREME(&max_fold)};
const cup__op cup__op_min = {EXTREME(&min_fold)};

const cup__op cup__op_extreme_mask = {
    CUP__POINTWISE(&extreme_mask_kind),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};

const cup__op cup__op_extreme_grad = {
    CUP__POINTWISE(&extreme_bwd_kind),
    .samples = grad_samples,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {1, 9}},
};
