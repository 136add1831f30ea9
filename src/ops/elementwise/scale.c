#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(1, scale_fwd, a[0] * x[0], (float)a[0] * p, a[0] * x[0])

static cup_status gradient(cup__grad *g)
{
    const cup__scale_attributes *a = g->attributes;
    g->d_in[0] = cup_scale(g->c, g->d_out[0], a->factor);
    return CUP_OK;
}

static const cup__scale_attributes third = {1.0 / 3}, minus = {-2};
static const cup__sample samples[] = {{"0x5", &third},      {"()", &minus},     {"7", &third},
                                      {"2x3x1025", &minus}, {"33x1000", &third}, {NULL, NULL}};
static const cup__sample bench[] = {{"67108864", &third}, {NULL, NULL}};

const cup__op cup__op_scale = {
    CUP__POINTWISE(&scale_fwd_kind),
    .gradient = gradient,
    .composed = gradient,
    .samples = samples,
    .bench = bench,
};
