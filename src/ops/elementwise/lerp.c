#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

/* From the nearer end, so that both ends are met exactly. */
CUP__ELEMENT(lerp_fwd_f64,
             a[0] < 0.5 ? x[0] + a[0] * (x[1] - x[0]) : x[1] - (1 - a[0]) * (x[1] - x[0]))
CUP__FLOATS_2(near_a, p + (float)a[0] * (q - p))
CUP__FLOATS_2(near_b, q - (float)(1 - a[0]) * (q - p))

static void lerp_fwd_f32(float *y, const float *const *x, int64_t count, const double *a)
{
    (a[0] < 0.5 ? near_a : near_b)(y, x, count, a);
}

CUP__KERNEL(lerp_fwd, a[0] < (attribute)0.5 ? x[0] + a[0] * (x[1] - x[0])
                                           : x[1] - (1 - a[0]) * (x[1] - x[0]))

static cup_status gradient(cup__grad *g)
{
    const cup__lerp_attributes *a = g->attributes;
    const double part[2] = {1 - a->weight, a->weight};
    for (int i = 0; i < 2; i++)
        if (g->wanted[i])
            g->d_in[i] =
                cup__sum_to(g->c, cup_scale(g->c, g->d_out[0], part[i]), &g->in_shape[i]);
    return CUP_OK;
}

static const cup__lerp_attributes small = {0.01}, large = {0.75}, all = {1}, beyond = {-2};
static const cup__sample samples[] = {{"7 7", &small},      {"3x5 5", &large},
                                      {"3x1 1x5", &all},    {"() 4x3", &beyond},
                                      {"0x5 5", &small},    {"2x3x1025 3x1", &large},
                                      {"4096 4096", &small}, {NULL, NULL}};
static const cup__sample bench[] = {{"67108864 67108864", &small}, {NULL, NULL}};

const cup__op cup__op_lerp = {
    CUP__POINTWISE(&lerp_fwd_kind),
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
    .bench = bench,
};
