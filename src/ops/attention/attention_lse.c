/* Attention with the logarithms of its sums as a result: the same call, whose gradient has one part
 * more. That of a query's logarithm with respect to a score is the score's probability, so it is
 * the gradient of an attention to values of 1, of which nothing is taken away. */
#include <stddef.h>
#include <string.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/attention/attention.h"

#define EXTRAS CUP__ATTENTION_EXTRAS
#define SAME(field)                                                                                \
    _Static_assert(offsetof(cup__attention_attributes, field) ==                                   \
                       offsetof(cup__attention_lse_attributes, field),                             \
                   "attributes are read as those of attention")
SAME(causal);
SAME(dropout);
SAME(window_right);
SAME(top_left);
SAME(block_size);

/* What a sink gets: its own probability times the gradient of each logarithm. */
static cup_tensor *of_sinks(const cup__grad *g, cup_tensor *sinks)
{
    cup_context *c = g->c;
    cup_tensor *column = cup_reshape(c, sinks, 2, (int64_t[]){g->in_shape[0].size[1], 1});
    cup_tensor *p = cup_exp(c, cup_sub(c, column, cup__detached(g->out[1])));
    return cup_sum(c, cup_mul(c, p, g->d_out[1]), (int64_t[]){0, 2}, 2, false);
}

/* The gradients of the logarithms, added to those that are there. */
static cup_status add_logarithms(cup__grad *g)
{
    cup_context *c = g->c;
    cup__attention_lse_attributes attributes;
    memcpy(&attributes, g->attributes, sizeof attributes);
    cup_tensor *d_in[EXTRAS + CUP__EXTRAS] = {NULL};
    cup__grad part = *g;
    const cup__shape *q = &g->in_shape[0];
    const int64_t column[] = {q->size[0], q->size[1], q->size[2], 1};
    attributes.dropout = 0;
    part.attributes = &attributes;
    part.d_in = d_in;
    cup_tensor *d = cup_scale(c, g->d_out[1], 1 / (double)g->out_shape[0].size[3]);
    d = cup_cast(c, cup_reshape(c, d, 4, column), q->dtype);
    d = cup_copy(c, cup_broadcast(c, d, 4, g->out_shape[0].size));
    cup_tensor *const in[] = {g->in[0],  g->in[1], cup__full(c, &g->in_shape[2], 1),
                              cup__full(c, &g->out_shape[0], 0), g->out[1], d};
    CUP_TRY(cup__attention_back(&part, &cup__rows[CUP__OP_attention_grad], in, 6, EXTRAS));
    int sinks = EXTRAS + CUP__SINKS;
    if (sinks < g->in_count && g->in[sinks] && g->wanted[sinks])
        d_in[sinks] = of_sinks(g, g->in[sinks]);
    d_in[2] = NULL;
    for (int i = 0; i < g->in_count; i++)
        if (d_in[i])
            g->d_in[i] = g->d_in[i] ? cup_add(c, g->d_in[i], d_in[i]) : d_in[i];
    return c->error.status;
}

static cup_status gradient(cup__grad *g)
{
    cup_tensor *const in[] = {g->in[0],  g->in[1],  g->in[2],
                              g->out[0], g->out[1], g->d_out[0]};
    if (g->d_out[0])
        CUP_TRY(cup__attention_back(g, &cup__rows[CUP__OP_attention_grad], in, 6, EXTRAS));
    return g->d_out[1] ? add_logarithms(g) : g->c->error.status;
}

#define WITH(...) &(const cup__attention_lse_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1x1x1x1", WITH(0)},
    {"2x2x5x8 2x2x5x8 2x2x5x8", WITH(.causal = true)},
    {"0x2x5x8 0x2x5x8 0x2x5x8", WITH(.causal = true)},
    {"1x2x3x4 1x2x0x4 1x2x0x4", WITH(0)},
    {"1x2x7x16 1x1x3x16 1x1x3x16", WITH(.causal = true)},
    {"1x4x66x24 1x2x66x24 1x2x66x24 - 4", WITH(.causal = true, .dropout = 0.2)},
    {"1x2x70x64 1x1x200x64 1x1x200x64", WITH(.causal = true, .top_left = true)},
    {"1x4x1x64 1x2x300x64 1x2x300x64 4 4", WITH(.soft_cap = 3)},
    {"1x1x40x128 1x1x70x128 1x1x70x128 - - - - 1x1x40x70", WITH(.window_left = 30)},
    {"2x2x130x64 2x1x130x64 2x1x130x64 - - - - - 1x2x9x3", WITH(.block_size = 16)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64", WITH(.causal = true)}, {NULL, NULL}};

const cup__op cup__op_attention_lse = {
    .kind = CUP__ATTENTION,
    .infer = cup__attention_infer,
    .specification = cup__attention_specification,
    .gradient = gradient,
    .impls = cup__attention_impls,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3) |
             CUP__SAVE_IN(4) | CUP__SAVE_IN(5) | CUP__SAVE_IN(6) | CUP__SAVE_IN(7) |
             CUP__SAVE_IN(8) | CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1),
    .in_dtypes = {[3] = CUP__NUMBERS, [4] = CUP__NUMBERS, [5] = CUP__DTYPES_INDEX,
                  [6] = CUP__DTYPES_INDEX, [8] = CUP__DTYPES_INDEX},
    .ascending = 1u << 5 | 1u << 6,
    .indices = cup__attention_places,
    .domain = {[3] = {0.01, 0.5}, [8] = {-1, 3}},
    .random = true,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .tolerance = 32, /* as attention */
    .cost = cup__attention_cost,
};
