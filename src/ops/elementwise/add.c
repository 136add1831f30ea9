#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

static double add(const double *x, const double *a)
{
    (void)a;
    return x[0] + x[1];
}

CUP__WIDE static void add_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *left = x[0], *right = x[1];
    for (int64_t i = 0; i < count; i++)
        y[i] = left[i] + right[i];
}

static int64_t add_i64(const int64_t *x, const double *a)
{
    (void)a;
    return (int64_t)((uint64_t)x[0] + (uint64_t)x[1]);
}

static cup_status gradient(cup__grad *g)
{
    g->d_in[0] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[0]);
    g->d_in[1] = cup__sum_to(g->c, g->d_out[0], &g->in_shape[1]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "add.cu", .f64 = add, .f32 = add_f32, .i64 = add_i64,
                                    .entry = "add_fwd"};

const cup__op cup__op_add = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};
