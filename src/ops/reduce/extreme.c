#include "ops/reduce/extreme.h"

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

static double is_equal(const double *x, const double *a)
{
    (void)a;
    return x[0] == x[1] ? 1 : 0;
}

CUP__WIDE static void is_equal_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *left = x[0], *right = x[1];
    for (int64_t i = 0; i < count; i++)
        y[i] = left[i] == right[i] ? 1.0f : 0.0f;
}

/* (x, y, dy, n): what an element gets of the gradient, shared among the n that are extreme. */
static double share(const double *x, const double *a)
{
    (void)a;
    return x[0] == x[1] ? x[2] / x[3] : 0;
}

CUP__WIDE static void share_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0], *extreme = x[1], *dy = x[2], *n = x[3];
    for (int64_t i = 0; i < count; i++)
        y[i] = in[i] == extreme[i] ? dy[i] / n[i] : 0.0f;
}

cup_status cup__extreme_gradient(cup__grad *g)
{
    const cup__sum_attributes *a = g->attributes;
    cup_tensor *y = cup__reduce_kept(g, g->out[0]), *dy = cup__reduce_kept(g, g->d_out[0]);
    cup_tensor *mask = cup__extreme_mask(g->c, g->in[0], y);
    cup_tensor *n = cup_sum(g->c, mask, a->axes, a->axes_count, true);
    g->d_in[0] = cup__extreme_grad(g->c, g->in[0], y, dy, n);
    return CUP_OK;
}

static const cup__pointwise mask_kind = {.source = "extreme.cu", .f64 = is_equal,
                                         .f32 = is_equal_f32, .entry = "extreme_mask"};
static const cup__pointwise grad_kind = {.source = "extreme.cu", .knob = "GRAD", .f64 = share,
                                         .f32 = share_f32, .entry = "extreme_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7 7", NULL}, {"3x5 3x1 3x1 3x1", NULL}, {"2x1025 2x1 2x1 2x1", NULL}, {NULL, NULL}};

const cup__op cup__op_extreme_mask = {
    CUP__POINTWISE(&mask_kind),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};

const cup__op cup__op_extreme_grad = {
    CUP__POINTWISE(&grad_kind),
    .samples = grad_samples,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {1, 9}},
};
