#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

static double mul(const double *x, const double *a)
{
    (void)a;
    return x[0] * x[1];
}

CUP__WIDE static void mul_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (void)a;
    const float *left = x[0], *right = x[1];
    for (int64_t i = 0; i < count; i++)
        y[i] = left[i] * right[i];
}

static int64_t mul_i64(const int64_t *x, const double *a)
{
    (void)a;
    return (int64_t)((uint64_t)x[0] * (uint64_t)x[1]);
}

static cup_status gradient(cup__grad *g)
{
    for (int i = 0; i < 2; i++)
        if (g->wanted[i])
            g->d_in[i] =
                cup__sum_to(g->c, cup_mul(g->c, g->d_out[0], g->in[1 - i]), &g->in_shape[i]);
    return CUP_OK;
}

static const cup__pointwise kind = {.source = "mul.cu", .f64 = mul, .f32 = mul_f32, .i64 = mul_i64,
                                    .entry = "mul_fwd"};

const cup__op cup__op_mul = {
    CUP__POINTWISE(&kind),
    .gradient = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .samples = cup__binary_samples,
    .bench = cup__binary_bench,
};
