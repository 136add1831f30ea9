/* Attention over the product of one linear layer, [B,T,(H+2G) D]: per position the heads of q, then
 * those of k, then those of v. Its gradient is one tensor of the same form, so that nothing is
 * split or joined on either way. */
#include <math.h>

#include "ops/attention/attention.h"
#include "dispatch/attributes.h"

static int64_t groups_of(int heads, int kv_heads)
{
    return kv_heads ? kv_heads : heads;
}

/* Where the optional inputs begin. */
enum { EXTRAS = 1, EXTRAS_GRAD = 4 };

#define SIZES(call, heads)                                                                         \
    (const int64_t[]){(call)->in[0]->shape[0], heads, (call)->in[0]->shape[1],                     \
                      (call)->in[0]->shape[1]}
#define CHECK(call, a, first)                                                                      \
    CUP_TRY(check_inputs(call, (a)->heads, (a)->kv_heads, (a)->scale, (a)->dropout));              \
    CUP_TRY(cup__attention_mask_check(call, (a)->window_left, (a)->window_right));                 \
    CUP_TRY(cup__attention_offsets_check(call, first));                                            \
    CUP_TRY(cup__attention_score_check(call, (a)->soft_cap, first, (a)->heads));                   \
    CUP_TRY(cup__attention_bias_check(call, first, SIZES(call, (a)->heads)))

static cup_status check_inputs(cup__call *call, int heads, int kv_heads, double scale,
                               double dropout)
{
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 3, 3));
    int64_t kv = groups_of(heads, kv_heads), width = call->in[0]->shape[2];
    if (heads < 1 || kv < 1 || heads % kv != 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "heads must be at least 1 and a multiple of kv_heads, not %d and %d",
                              heads, kv_heads);
    int64_t parts = heads + 2 * kv;
    if (width % parts != 0)
        return cup__call_fail(call, CUP_SHAPE,
                              "the width %lld does not divide into %d heads of q and %lld each of "
                              "k and v",
                              (long long)width, heads, (long long)kv);
    return cup__attention_check(call, scale, dropout, width / parts);
}

static cup_status infer(cup__call *call)
{
    const cup__qkv_attention_attributes *a = call->attributes;
    CHECK(call, a, EXTRAS);
    const cup_tensor *qkv = call->in[0];
    int64_t size = qkv->shape[2] / (a->heads + 2 * groups_of(a->heads, a->kv_heads));
    call->result[0] = cup__shape_of(qkv);
    call->result[0].size[2] = size * a->heads;
    call->result[1] = (cup__shape){.dtype = qkv->dtype == CUP_F64 ? CUP_F64 : CUP_F32,
                                   .ndim = 3,
                                   .size = {qkv->shape[0], a->heads, qkv->shape[1]}};
    return CUP_OK;
}

static cup_status infer_grad(cup__call *call)
{
    const cup__qkv_attention_grad_attributes *a = call->attributes;
    CHECK(call, a, EXTRAS_GRAD);
    call->result[0] = cup__shape_of(call->in[0]);
    cup__attention_infer_numbers(call, EXTRAS_GRAD, 1, SIZES(call, a->heads), a->bias_grad);
    return CUP_OK;
}

/* The heads that begin at head `first` of a tensor [B,T,heads size]. */
static cup__heads heads_of(cup_tensor *t, int64_t first, int64_t size)
{
    if (!t)
        return (cup__heads){0};
    return (cup__heads){.tensor = t,
                        .offset = first * size * t->stride[2],
                        .stride = {t->stride[0], size * t->stride[2], t->stride[1], t->stride[2]}};
}

static cup__attention attention_of(const cup__call *call, int heads, int kv_heads, double scale,
                                   double dropout)
{
    cup_tensor *qkv = call->in[0];
    int64_t kv = groups_of(heads, kv_heads), size = qkv->shape[2] / (heads + 2 * kv);
    cup__attention a = {
        .c = call->c,
        .random = call->random,
        .drawn = call->drawn,
        .dtype = qkv->dtype,
        .batch = qkv->shape[0],
        .heads = heads,
        .kv_heads = kv,
        .queries = qkv->shape[1],
        .keys = qkv->shape[1],
        .key_size = size,
        .value_size = size,
        .size = size,
        .scale = scale != 0 ? scale : 1 / sqrt((double)size),
        .dropout = dropout,
        .q = heads_of(qkv, 0, size),
        .k = heads_of(qkv, heads, size),
        .v = heads_of(qkv, heads + kv, size),
    };
    cup__attention_draws(&a, (int64_t)call->share << 32 | call->sequence);
    return a;
}

cup__attention cup__attention_of_one(const cup__call *call)
{
    const cup__qkv_attention_attributes *t = call->attributes;
    cup__attention a = attention_of(call, t->heads, t->kv_heads, t->scale, t->dropout);
    a.mask = CUP__MASK_OF(t, call, EXTRAS, a.queries, a.keys);
    a.score = CUP__SCORE_OF(t, call, EXTRAS);
    a.o = heads_of(call->out[0], 0, a.size);
    a.lse = call->out_count > 1 ? call->out[1] : NULL;
    return a;
}

cup__attention cup__attention_of_one_grad(const cup__call *call)
{
    const cup__qkv_attention_grad_attributes *t = call->attributes;
    cup__attention a = attention_of(call, t->heads, t->kv_heads, t->scale, t->dropout);
    a.mask = CUP__MASK_OF(t, call, EXTRAS_GRAD, a.queries, a.keys);
    a.score = CUP__SCORE_OF(t, call, EXTRAS_GRAD);
    cup__attention_draws(&a, t->sequence);
    a.o = heads_of(call->in[1], 0, a.size);
    a.lse = call->in[2];
    a.d_o = heads_of(call->in[3], 0, a.size);
    a.dq = heads_of(call->out[0], 0, a.size);
    a.dk = heads_of(call->out[0], a.heads, a.size);
    a.dv = heads_of(call->out[0], a.heads + a.kv_heads, a.size);
    a.d_slopes = call->out[1];
    a.d_sinks = call->out[2];
    a.d_bias = t->bias_grad ? call->out[3] : NULL;
    return a;
}

static cup_status gradient(cup__grad *g)
{
    cup_tensor *const in[] = {g->in[0], g->out[0], g->out[1], g->d_out[0]};
    return cup__attention_back(g, &cup__rows[CUP__OP_qkv_attention_grad], in, 4, EXTRAS);
}

/* Positions that offsets name. */
static int64_t places(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    bool names = i == EXTRAS + CUP__QUERY_OFFSETS || i == EXTRAS + CUP__KEY_OFFSETS;
    return names ? in[0]->shape[1] : 0;
}

static int64_t places_grad(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    bool names = i == EXTRAS_GRAD + CUP__QUERY_OFFSETS || i == EXTRAS_GRAD + CUP__KEY_OFFSETS;
    return names ? in[0]->shape[1] : 0;
}

#define WITH(...) &(const cup__qkv_attention_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x3", WITH(.heads = 1)},
    {"2x0x24", WITH(.heads = 2)},
    {"2x5x48", WITH(.heads = 2, .causal = true)},
    {"1x19x40", WITH(4, 2, .causal = true)},
    {"2x66x96", WITH(4, 4, .causal = true, .dropout = 0.2)},
    {"2x66x96", WITH(4, 2, .causal = true, .window_left = 17)},
    {"1x130x96", WITH(.heads = 2, .window_left = 9, .window_right = 65)},
    {"1x1x2664", WITH(.heads = 4, .scale = 0.1256, .dropout = 0.822)},
    {"1x130x320", WITH(3, 1, .scale = 0.05)},
    {"1x19x40 4 4", WITH(4, 2, .causal = true, .soft_cap = 2)},
    {"2x66x96 - 4", WITH(4, 4, .causal = true, .dropout = 0.2)},
    {"2x66x96 4", WITH(4, 2, .causal = true, .window_left = 17)},
    {"2x130x96 - - 2x3", WITH(.heads = 2, .causal = true)},
    {"2x66x96 - - - 2x1", WITH(4, 2, .scale = 0.1)},
    {"2x66x96 - - - - 1x4x66x66", WITH(4, 2, .causal = true)},
    {NULL, NULL}};
#define GRAD(...) &(const cup__qkv_attention_grad_attributes){__VA_ARGS__}
static const cup__sample samples_grad[] = {
    {"1x1x3 1x1x1 1x1x1 1x1x1", GRAD(.heads = 1)},
    {"2x0x24 2x0x8 2x2x0 2x0x8", GRAD(.heads = 2)},
    {"2x5x48 2x5x16 2x2x5 2x5x16", GRAD(.heads = 2, .causal = true)},
    {"1x19x40 1x19x20 1x4x19 1x19x20", GRAD(4, 2, .causal = true)},
    {"2x66x96 2x66x32 2x4x66 2x66x32", GRAD(4, 4, .causal = true, .dropout = 0.2, .sequence = 3)},
    {"1x130x320 1x130x192 1x3x130 1x130x192", GRAD(3, 1, .scale = 0.05)},
    {"1x300x384 1x300x128 1x2x300 1x300x128", GRAD(.heads = 2, .causal = true)},
    {"2x66x96 2x66x48 2x4x66 2x66x48", GRAD(4, 2, .causal = true, .window_left = 17)},
    {"1x130x96 1x130x32 1x2x130 1x130x32", GRAD(.heads = 2, .window_left = 9, .window_right = 65)},
    {"1x19x40 1x19x20 1x4x19 1x19x20 4 4", GRAD(4, 2, .causal = true, .soft_cap = 2)},
    {"2x130x96 2x130x32 2x2x130 2x130x32 - - 2x3", GRAD(.heads = 2, .causal = true)},
    {"2x66x96 2x66x48 2x4x66 2x66x48 - - - - 1x4x66x66", GRAD(4, 2, .bias_grad = true)},
    {"2x66x96 2x66x32 2x4x66 2x66x32 - 4",
     GRAD(4, 4, .causal = true, .dropout = 0.2, .sequence = 3)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"64x256x1152", WITH(6, 6, .causal = true, .dropout = 0.2)},
                                    {"32x1024x2304", WITH(.heads = 12, .causal = true)},
                                    {"4x4096x6144", WITH(.heads = 16, .causal = true)},
                                    {NULL, NULL}};
static const cup__sample bench_grad[] = {
    {"64x256x1152 64x256x384 64x6x256 64x256x384", GRAD(6, 6, .causal = true, .dropout = 0.2)},
    {"32x1024x2304 32x1024x768 32x12x1024 32x1024x768", GRAD(.heads = 12, .causal = true)},
    {"4x4096x6144 4x4096x2048 4x16x4096 4x4096x2048", GRAD(.heads = 16, .causal = true)},
    {NULL, NULL}};

/* Offsets are of texts in one row, a bias may be of all, and random numbers are by the place in the
 * batch. */
static uint32_t by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                         const void *attributes)
{
    const cup__qkv_attention_attributes *a = attributes;
    (void)op;
    for (int i = EXTRAS + 2; i < in_count; i++)
        if (in[i])
            return 0;
    return a->dropout > 0 ? 0 : 1;
}

const cup__op cup__op_qkv_attention = {
    .kind = CUP__QKV_ATTENTION,
    .infer = infer,
    .specification = cup__attention_specification,
    .gradient = gradient,
    .composed = cup__qkv_attention_composed,
    .impls = cup__attention_impls,
    .by_texts = by_texts,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3) |
             CUP__SAVE_IN(4) | CUP__SAVE_IN(5) | CUP__SAVE_OUT(0) |
             CUP__SAVE_OUT(1),
    .in_dtypes = {[1] = CUP__NUMBERS, [2] = CUP__NUMBERS, [3] = CUP__DTYPES_INDEX,
                  [4] = CUP__DTYPES_INDEX},
    .ascending = 1u << 3 | 1u << 4,
    .indices = places,
    .domain = {[1] = {0.01, 0.5}},
    .random = true,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .tolerance = 32, /* as attention */
    .cost = cup__attention_cost,
};

const cup__op cup__op_qkv_attention_grad = {
    .kind = CUP__QKV_ATTENTION_GRAD,
    .infer = infer_grad,
    .specification = cup__attention_specification_grad,
    .impls = cup__attention_grad_impls,
    .strided_out = true,
    .samples = samples_grad,
    .bench = bench_grad,
    .domain = {[2] = {4, 6}, [4] = {0.01, 0.5}},
    .in_dtypes = {[2] = CUP__NUMBERS, [4] = CUP__NUMBERS, [5] = CUP__NUMBERS,
                  [6] = CUP__DTYPES_INDEX, [7] = CUP__DTYPES_INDEX},
    .ascending = 1u << 6 | 1u << 7,
    .indices = places_grad,
    .tolerance = 64, /* as attention_grad */
    .cost = cup__attention_cost,
};
