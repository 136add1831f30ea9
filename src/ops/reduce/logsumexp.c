#include <math.h>

#include "base/wide_math.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

/* (x, y, dy): dy times the softmax, for y at least as large as x. */
static double slope(const double *x, const double *a)
{
    (void)a;
    return x[2] * exp(x[0] - x[1]);
}

CUP__WIDE static void slope_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *in = x[0], *sum = x[1], *dy = x[2];
    for (int64_t i = 0; i < count; i++)
        y[i] = dy[i] * cup__exp_f32(in[i] - sum[i]);
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__logsumexp_grad(g->c, g->in[0], cup__reduce_kept(g, g->out[0]),
                                     cup__reduce_kept(g, g->d_out[0]));
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "logsumexp.cu", .f64 = slope, .f32 = slope_f32,
                                    .entry = "logsumexp_bwd"};
static const cup__sample grad_samples[] = {
    {"7 7 7", NULL}, {"3x5 3x1 3x1", NULL}, {"2x1025 2x1 2x1", NULL}, {NULL, NULL}};

const cup__op cup__op_logsumexp = {
    CUP__REDUCE(CUP__FOLD_LOGSUMEXP),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_OUT(0),
};

const cup__op cup__op_logsumexp_grad = {
    CUP__POINTWISE(&kind),
    .samples = grad_samples,
    .domain = {{-2, 2}, {2, 6}},
    .tolerance = 8, /* the rounding of x - y, at most 8, comes through the exponential */
};
