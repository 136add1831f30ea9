#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"

CUP__FORMULA(2, add_relu_fwd, x[0] + x[1] < 0 ? 0 : x[0] + x[1], p + q < 0.0f ? 0.0f : p + q,
             x[0] + x[1] < 0 ? (real)0 : x[0] + x[1])

static const cup__sample samples[] = {{"7 7", NULL},   {"3x5 5", NULL}, {"() 4x3", NULL},
                                      {"0x5 5", NULL}, {"2x3x1025 3x1", NULL},
                                      {"4096 4096", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {{"67108864 67108864", NULL}, {NULL, NULL}};

const cup__op cup__op_add_relu = {
    CUP__POINTWISE(&add_relu_fwd_kind),
    .samples = samples,
    .bench = bench,
};
