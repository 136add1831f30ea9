#include "dispatch/attributes.h"
#include "ops/random/dropout.h"

static cup_status gradient(cup__grad *g)
{
    const cup__dropout_add_attributes *a = g->attributes;
    g->d_in[0] = g->d_out[0];
    if (g->wanted[1])
        g->d_in[1] = cup__dropout_grad(g->c, g->d_out[0], g->out[1], a->p);
    return CUP_OK;
}

#define P(p) &(const cup__dropout_add_attributes){p}
static const cup__sample samples[] = {
    {"7 7", P(0.5)},       {"() ()", P(0.3)},         {"3x5 3x5", P(0)}, {"16x3 16x3", P(1)},
    {"33x1000 33x1000", P(0.1)}, {"2x3x1025 2x3x1025", P(0.75)}, {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072 32768x3072", P(0.1)}, {NULL, NULL}};

const cup__op cup__op_dropout_add = {
    .infer = cup__dropout_infer,
    .specification = cup__dropout_specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = cup__dropout_impls,
    .saves = CUP__SAVE_OUT(1),
    .random = true,
    .samples = samples,
    .bench = bench,
};
