#include "ops/attention/attention.h"

#include <math.h>

#include "dispatch/attributes.h"

/* Where the optional inputs begin. */
enum { EXTRAS = CUP__ATTENTION_EXTRAS, EXTRAS_GRAD = 6 };

cup_status cup__attention_check(cup__call *call, double scale, double dropout, int64_t size)
{
    if (!isfinite(scale))
        return cup__call_fail(call, CUP_ARGUMENT, "scale must be finite; 0 means 1/sqrt(size)");
    if (!(dropout >= 0 && dropout < 1))
        return cup__call_fail(call, CUP_ARGUMENT, "dropout must be at least 0 and below 1, not %g",
                              dropout);
    if (size < 1)
        return cup__call_fail(call, CUP_SHAPE, "heads must have a size of at least 1");
    return CUP_OK;
}

#define SIZES(call)                                                                                \
    (const int64_t[]){(call)->in[0]->shape[0], (call)->in[0]->shape[1], (call)->in[0]->shape[2],   \
                      (call)->in[1]->shape[2]}

/* The lists of blocks, in whose place calls by a formula have its tensors. */
static const cup_tensor *lists_in(const cup__call *call, int first)
{
    bool formula = call->op->kind == CUP__ATTENTION_FORMULA ||
                   call->op->kind == CUP__ATTENTION_FORMULA_GRAD;
    return formula ? NULL : cup__attention_extra(call, first + CUP__KEY_BLOCKS);
}

#define CHECK(call, a, first)                                                                      \
    CUP_TRY(check_inputs(call, (a)->scale, (a)->dropout));                                         \
    CUP_TRY(cup__attention_mask_check(call, (a)->window_left, (a)->window_right));                 \
    CUP_TRY(cup__attention_offsets_check(call, first));                                            \
    CUP_TRY(cup__attention_score_check(call, (a)->soft_cap, first, (call)->in[0]->shape[1]));      \
    CUP_TRY(cup__attention_bias_check(call, first, SIZES(call)));                                  \
    CUP_TRY(cup__attention_lists_check(call, lists_in(call, first), (a)->block_size,               \
                                       SIZES(call)));                                              \
    CUP_TRY(check_corner(call, (a)->top_left, first))

static cup_status check_inputs(cup__call *call, double scale, double dropout)
{
    for (int i = 0; i < 3; i++) {
        CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        CUP_TRY(cup__need_ndim(call, i, 4, 4));
    }
    const int64_t *q = call->in[0]->shape, *k = call->in[1]->shape, *v = call->in[2]->shape;
    for (int i = 0; i < 3; i++)
        if (k[i] != v[i])
            return cup__call_fail(call, CUP_SHAPE, "k and v must have the same shape, but for the "
                                                   "size of a head");
    if (v[3] < 1)
        return cup__call_fail(call, CUP_SHAPE, "heads must have a size of at least 1");
    if (q[0] != k[0] || q[3] != k[3])
        return cup__call_fail(call, CUP_SHAPE,
                              "q, k and v must agree in the batch, and q and k in the size of a "
                              "head");
    if (q[1] != k[1] && (k[1] == 0 || q[1] % k[1] != 0))
        return cup__call_fail(call, CUP_SHAPE,
                              "the %lld heads of q are no multiple of the %lld heads of k and v",
                              (long long)q[1], (long long)k[1]);
    return cup__attention_check(call, scale, dropout, q[3]);
}

static cup_status check_corner(cup__call *call, bool top_left, int first)
{
    for (int i = 0; top_left && i < CUP__EXTRAS; i++)
        if ((i == CUP__SLOPES || i == CUP__QUERY_OFFSETS || i == CUP__KEY_OFFSETS) &&
            cup__attention_extra(call, first + i))
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "top_left goes with neither slopes nor offsets; take the first "
                                  "keys with cup_slice instead");
    return CUP_OK;
}

cup_status cup__attention_infer(cup__call *call)
{
    const cup__attention_attributes *attributes = call->attributes;
    CHECK(call, attributes, EXTRAS);
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].size[3] = call->in[2]->shape[3];
    call->order[0] = "0213";
    call->result[1] = call->result[0];
    call->result[1].ndim = 3;
    call->result[1].dtype = call->result[0].dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    return CUP_OK;
}

static cup_status infer_grad(cup__call *call)
{
    const cup__attention_grad_attributes *attributes = call->attributes;
    CHECK(call, attributes, EXTRAS_GRAD);
    for (int i = 0; i < 3; i++) {
        call->result[i] = cup__shape_of(call->in[i]);
        call->order[i] = "0213";
    }
    cup__attention_infer_numbers(call, EXTRAS_GRAD, 3, SIZES(call), attributes->bias_grad);
    return CUP_OK;
}

static cup__heads heads_of(cup_tensor *t)
{
    cup__heads h = {.tensor = t};
    for (int i = 0; t && i < 4; i++)
        h.stride[i] = t->stride[i];
    return h;
}

static cup__attention attention_of(const cup__call *call, double scale, double dropout)
{
    cup_tensor *const *in = call->in;
    int64_t size = in[0]->shape[3], value_size = in[2]->shape[3];
    cup__attention a = {
        .c = call->c,
        .random = call->random,
        .drawn = call->drawn,
        .dtype = in[0]->dtype,
        .batch = in[0]->shape[0],
        .heads = in[0]->shape[1],
        .kv_heads = in[1]->shape[1],
        .queries = in[0]->shape[2],
        .keys = in[1]->shape[2],
        .key_size = size,
        .value_size = value_size,
        .size = size > value_size ? size : value_size,
        .scale = scale != 0 ? scale : 1 / sqrt((double)size),
        .dropout = dropout,
        .q = heads_of(in[0]),
        .k = heads_of(in[1]),
        .v = heads_of(in[2]),
    };
    cup__attention_draws(&a, (int64_t)call->share << 32 | call->sequence);
    return a;
}

cup__attention cup__attention_of_three(const cup__call *call)
{
    const cup__attention_attributes *attributes = call->attributes;
    cup__attention a = attention_of(call, attributes->scale, attributes->dropout);
    a.mask = CUP__MASK_FROM(attributes, attributes->top_left, call, EXTRAS, a.queries, a.keys);
    a.score = CUP__SCORE_OF(attributes, call, EXTRAS);
    a.lists = cup__attention_lists_of(lists_in(call, EXTRAS), attributes->block_size, a.keys);
    a.o = heads_of(call->out[0]);
    a.lse = call->out_count > 1 ? call->out[1] : NULL;
    return a;
}

cup__attention cup__attention_of_three_grad(const cup__call *call)
{
    const cup__attention_grad_attributes *attributes = call->attributes;
    cup__attention a = attention_of(call, attributes->scale, attributes->dropout);
    a.mask = CUP__MASK_FROM(attributes, attributes->top_left, call, EXTRAS_GRAD, a.queries, a.keys);
    a.score = CUP__SCORE_OF(attributes, call, EXTRAS_GRAD);
    a.lists = cup__attention_lists_of(lists_in(call, EXTRAS_GRAD), attributes->block_size, a.keys);
    cup__attention_draws(&a, attributes->sequence);
    a.o = heads_of(call->in[3]);
    a.lse = call->in[4];
    a.d_o = heads_of(call->in[5]);
    a.dq = heads_of(call->out[0]);
    a.dk = heads_of(call->out[1]);
    a.dv = heads_of(call->out[2]);
    a.d_slopes = call->out[3];
    a.d_sinks = call->out[4];
    a.d_bias = attributes->bias_grad ? call->out[5] : NULL;
    return a;
}

static cup_status gradient(cup__grad *g)
{
    cup_tensor *const in[] = {g->in[0],  g->in[1],  g->in[2],
                              g->out[0], g->out[1], g->d_out[0]};
    return cup__attention_back(g, &cup__rows[CUP__OP_attention_grad], in, 6, EXTRAS);
}

/* Positions that offsets name, and blocks that lists do. */
static int64_t places_from(cup_tensor *const *in, int i, int first, int block_size)
{
    int64_t size = cup__attention_block_size(block_size);
    return i == first + CUP__QUERY_OFFSETS ? in[0]->shape[2]
           : i == first + CUP__KEY_OFFSETS ? in[1]->shape[2]
           : i == first + CUP__KEY_BLOCKS  ? (in[1]->shape[2] + size - 1) / size
                                           : 0;
}

#define BLOCK_SIZE(op, attributes) ((const cup__##op##_attributes *)(attributes))->block_size
int64_t cup__attention_places(cup_tensor *const *in, int i, const void *attributes)
{
    return places_from(in, i, EXTRAS, BLOCK_SIZE(attention, attributes));
}

static int64_t places_grad(cup_tensor *const *in, int i, const void *attributes)
{
    return places_from(in, i, EXTRAS_GRAD, BLOCK_SIZE(attention_grad, attributes));
}

#define WITH(...) &(const cup__attention_attributes){__VA_ARGS__}
static const cup__attention_attributes full, causal = {.causal = true},
                                             drop = {.causal = true, .dropout = 0.2},
                                             flat = {.scale = 0.05};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1x1x1x1", &full},
    {"2x2x5x8 2x2x5x8 2x2x5x8", &causal},
    {"0x2x5x8 0x2x5x8 0x2x5x8", &causal},
    {"1x2x3x4 1x2x0x4 1x2x0x4", &full},
    {"1x4x1x64 1x2x70x64 1x2x70x64", &causal},
    {"1x2x7x16 1x1x3x16 1x1x3x16", &causal},
    {"2x3x17x5 2x3x33x5 2x3x33x5", &full},
    {"1x4x66x24 1x2x66x24 1x2x66x24", &drop},
    {"1x2x129x64 1x1x129x64 1x1x129x64", &causal},
    {"1x1x65x80 1x1x130x80 1x1x130x80", &flat},
    {"1x2x40x128 1x2x72x128 1x2x72x128", &drop},
    {"1x1x19x256 1x1x35x256 1x1x35x256", &causal},
    /* Windows of one key, of two, to either side, at the edges of tiles, and where some queries or
     * keys are left with nothing. */
    {"2x2x5x8 2x2x5x8 2x2x5x8", WITH(.causal = true, .window_left = 1)},
    {"1x2x70x16 1x1x70x16 1x1x70x16", WITH(.window_left = 1, .window_right = 1)},
    {"1x2x129x64 1x1x129x64 1x1x129x64", WITH(.causal = true, .window_left = 2)},
    {"1x2x200x64 1x1x200x64 1x1x200x64", WITH(.causal = true, .window_left = 64)},
    {"1x2x200x64 1x1x200x64 1x1x200x64", WITH(.window_left = 65, .window_right = 33)},
    {"1x1x140x80 1x1x300x80 1x1x300x80", WITH(.causal = true, .window_left = 100)},
    {"1x1x300x128 1x1x140x128 1x1x140x128", WITH(.window_left = 31, .window_right = 17)},
    {"1x1x300x64 1x1x520x64 1x1x520x64", WITH(.window_right = 40)},
    {"1x4x66x24 1x2x66x24 1x2x66x24", WITH(.causal = true, .dropout = 0.2, .window_left = 20)},
    {"1x8x2x64 1x2x300x64 1x2x300x64", WITH(.causal = true, .window_left = 129)},
    {"1x8x9x64 1x1x300x64 1x1x300x64", WITH(.window_left = 40, .window_right = 3)},
    {"1x2x9x5 1x2x40x5 1x2x40x5", WITH(.window_left = 33, .window_right = 4)},
    /* Soft caps, slopes and sinks, each alone and with others. */
    {"2x2x5x8 2x2x5x8 2x2x5x8", WITH(.causal = true, .soft_cap = 1.5)},
    {"1x2x3x4 1x2x0x4 1x2x0x4 2 2", WITH(.soft_cap = 2)},
    {"1x2x7x16 1x1x3x16 1x1x3x16 2 2", WITH(.causal = true, .soft_cap = 0.7)},
    {"2x3x17x5 2x3x33x5 2x3x33x5 3", WITH(0)},
    {"2x3x17x5 2x3x33x5 2x3x33x5 - 3", WITH(.causal = true)},
    {"1x4x66x24 1x2x66x24 1x2x66x24 4 4", WITH(.causal = true, .dropout = 0.2, .soft_cap = 3)},
    {"2x4x129x64 2x1x129x64 2x1x129x64 4 -", WITH(.causal = true)},
    {"1x2x129x64 1x1x129x64 1x1x129x64 - 2", WITH(.scale = 0.2)},
    {"1x1x65x80 1x1x130x80 1x1x130x80 1 1", WITH(.scale = 0.3, .soft_cap = 5)},
    {"1x2x40x128 1x2x72x128 1x2x72x128 2 2", WITH(.causal = true, .soft_cap = 2)},
    {"1x1x19x256 1x1x35x256 1x1x35x256 1 1", WITH(.window_left = 9, .soft_cap = 50)},
    {"2x8x1x64 2x2x300x64 2x2x300x64 8 8", WITH(.causal = true, .soft_cap = 1)},
    {"1x8x5x128 1x2x3000x128 1x2x3000x128 8 8", WITH(.causal = true)},
    {"1x8x2x64 1x2x300x64 1x2x300x64 - 8", WITH(.causal = true, .window_left = 129)},
    /* Documents, of the same and of other lengths on both sides; lengths of keys. */
    {"1x2x70x16 1x1x70x16 1x1x70x16 - - 4", WITH(.causal = true)},
    {"2x2x200x64 2x1x200x64 2x1x200x64 - - 2x5", WITH(.causal = true)},
    {"1x2x200x64 1x1x300x64 1x1x300x64 - - 3 3", WITH(.causal = true)},
    {"2x2x129x40 2x1x160x40 2x1x160x40 - - 2x3 3", WITH(.window_left = 20, .window_right = 5)},
    {"1x2x150x80 1x2x150x80 1x2x150x80 2 2 9", WITH(.causal = true, .soft_cap = 3)},
    {"1x2x66x24 1x2x66x24 1x2x66x24 - - 3", WITH(.dropout = 0.2)},
    {"3x4x33x128 3x2x140x128 3x2x140x128 - - - 3x1", WITH(.causal = true)},
    {"3x8x1x64 3x2x300x64 3x2x300x64 - - - 3x1", WITH(.causal = true)},
    {"2x8x3x128 2x2x3000x128 2x2x3000x128 8 8 - 1", WITH(.window_left = 700)},
    {"1x1x40x256 1x1x40x256 1x1x40x256 - - 2", WITH(.causal = true)},
    {"1x1x9x5 1x1x9x5 1x1x9x5 - - 0", WITH(0)},
    /* Biases, whole and for all batches, heads or queries alike. */
    {"2x2x17x8 2x2x33x8 2x2x33x8 - - - - 2x2x17x33", WITH(0)},
    {"2x4x129x64 2x2x129x64 2x2x129x64 - - - - 1x4x129x129", WITH(.causal = true)},
    {"2x2x66x40 2x1x200x40 2x1x200x40 2 2 - - 2x1x1x200", WITH(.soft_cap = 4)},
    {"1x2x150x128 1x2x150x128 1x2x150x128 - - 4 - 1x1x150x150", WITH(.window_left = 60)},
    {"2x8x2x64 2x2x300x64 2x2x300x64 - - - - 1x8x1x300", WITH(.dropout = 0)},
    {"1x1x9x5 1x1x0x5 1x1x0x5 - - - - 1x1x9x0", WITH(0)},
    /* Heads of values of another size. */
    {"1x2x9x8 1x1x9x8 1x1x9x3", WITH(.causal = true)},
    {"2x2x40x24 2x1x70x24 2x1x70x40 - 2", WITH(.dropout = 0.2)},
    {"1x1x70x64 1x1x70x64 1x1x70x128", WITH(.causal = true)},
    {"1x4x2x192 1x1x100x192 1x1x100x128", WITH(.causal = true)},
    /* The first query at the first key. */
    {"1x2x17x8 1x2x40x8 1x2x40x8", WITH(.causal = true, .top_left = true)},
    {"1x2x40x24 1x1x17x24 1x1x17x24 - 2", WITH(.causal = true, .top_left = true)},
    {"1x1x40x64 1x1x140x64 1x1x140x64",
     WITH(.window_left = 30, .window_right = 9, .top_left = true)},
    {"1x1x90x128 1x1x40x128 1x1x40x128 - - - - 1x1x1x40",
     WITH(.causal = true, .window_left = 40, .top_left = true)},
    {"1x4x2x64 1x1x100x64 1x1x100x64", WITH(.causal = true, .top_left = true)},
    /* Tiles of 192 queries, the last of them short, whose thirds see keys of their own or none. */
    {"1x2x500x24 1x1x700x24 1x1x700x24", &causal},
    {"1x1x450x40 1x1x260x40 1x1x260x40 1 1", &causal},
    {"1x1x500x64 1x1x500x64 1x1x500x64", WITH(.causal = true, .window_left = 100)},
    {"1x1x460x16 1x1x900x16 1x1x900x16", WITH(.window_left = 150, .window_right = 70)},
    {"2x1x450x8 2x1x450x8 2x1x450x8 - - 2x5", WITH(.causal = true)},
    /* Several tiles of keys that a query sees, between some that it does not. */
    {"1x1x70x8 1x1x600x8 1x1x600x8", WITH(.causal = true, .window_left = 270)},
    {"1x1x30x72 1x1x620x72 1x1x620x72", WITH(.window_left = 290, .window_right = 150)},
    {"1x1x150x8 1x1x500x8 1x1x500x8 - - 3 3", WITH(.causal = true)},
    {"1x2x20x72 1x2x420x72 1x2x420x72 2 2 2 2 1x2x1x420", WITH(.causal = true, .soft_cap = 5)},
    {"1x1x20x72 1x1x260x72 1x1x260x72 - 1 - - 1x1x20x260", WITH(.dropout = 0.2)},
    {"1x1x20x136 1x1x260x136 1x1x260x136 1 1", WITH(.causal = true, .window_left = 150)},
    {"1x1x20x200 1x1x261x200 1x1x261x200 - 1 - - 1x1x20x261", WITH(.soft_cap = 9)},
    /* Lists of blocks: alike for batches, heads or both, smaller and larger than tiles, beside
     * masks, and for few queries. */
    {"1x1x5x8 1x1x5x8 1x1x5x8 - - - - - 1x1x1x1", WITH(0)},
    {"2x2x150x64 2x1x150x64 2x1x150x64 - - - - - 1x1x2x1", WITH(0)},
    {"2x4x200x64 2x2x330x64 2x2x330x64 - 4 - - - 1x4x13x3", WITH(.block_size = 16)},
    {"2x2x130x40 2x1x300x40 2x1x300x40 - - - - - 2x1x3x2", WITH(.causal = true, .block_size = 64)},
    {"1x2x300x128 1x1x600x128 1x1x600x128 - - - - - 1x2x10x4",
     WITH(.window_left = 290, .window_right = 150, .block_size = 32)},
    {"1x2x270x72 1x2x500x72 1x2x500x72 - - 3 3 - 1x1x2x2", WITH(.soft_cap = 5, .block_size = 256)},
    {"1x2x66x24 1x2x90x24 1x2x90x24 2 - - - - 1x1x5x2", WITH(.dropout = 0.2, .block_size = 16)},
    {"1x1x140x256 1x1x270x256 1x1x270x256 - - - - 1x1x1x270 1x1x9x5", WITH(.block_size = 16)},
    {"1x4x2x64 1x2x700x64 1x2x700x64 - - - - - 1x4x1x3", WITH(.causal = true, .block_size = 64)},
    {"1x1x9x5 1x1x70x5 1x1x70x5 - - - - - 1x1x1x0", WITH(.block_size = 16)},
    /* What cancels where a query sees one key is o as it is stored. */
    {"1x1x6x1 1x1x1x1 1x1x1x1", WITH(.dropout = 0.735)},
    {"1x2x1x1 1x2x1x1 1x2x1x1", WITH(.dropout = 0.661)},
    {NULL, NULL}};
#define GRAD(...) &(const cup__attention_grad_attributes){__VA_ARGS__}
static const cup__sample samples_grad[] = {
    {"1x1x1x1 1x1x1x1 1x1x1x1 1x1x1x1 1x1x1 1x1x1x1", GRAD(0)},
    {"2x2x5x8 2x2x5x8 2x2x5x8 2x2x5x8 2x2x5 2x2x5x8", GRAD(.causal = true)},
    {"0x2x5x8 0x2x5x8 0x2x5x8 0x2x5x8 0x2x5 0x2x5x8", GRAD(.causal = true)},
    {"1x2x3x4 1x2x0x4 1x2x0x4 1x2x3x4 1x2x3 1x2x3x4", GRAD(0)},
    {"1x2x7x16 1x1x3x16 1x1x3x16 1x2x7x16 1x2x7 1x2x7x16", GRAD(.causal = true)},
    {"2x3x17x5 2x3x33x5 2x3x33x5 2x3x17x5 2x3x17 2x3x17x5", GRAD(0)},
    {"1x4x66x24 1x2x66x24 1x2x66x24 1x4x66x24 1x4x66 1x4x66x24",
     GRAD(.causal = true, .dropout = 0.2, .sequence = 3)},
    {"1x2x129x64 1x1x129x64 1x1x129x64 1x2x129x64 1x2x129 1x2x129x64", GRAD(.causal = true)},
    {"1x1x65x80 1x1x130x80 1x1x130x80 1x1x65x80 1x1x65 1x1x65x80", GRAD(0)},
    {"1x2x40x128 1x2x72x128 1x2x72x128 1x2x40x128 1x2x40 1x2x40x128",
     GRAD(.causal = true, .dropout = 0.2)},
    {"1x1x19x256 1x1x35x256 1x1x35x256 1x1x19x256 1x1x19 1x1x19x256", GRAD(.causal = true)},
    {"1x4x300x64 1x2x300x64 1x2x300x64 1x4x300x64 1x4x300 1x4x300x64", GRAD(.causal = true)},
    {"1x2x140x128 1x1x400x128 1x1x400x128 1x2x140x128 1x2x140 1x2x140x128", GRAD(0)},
    {"1x1x330x128 1x1x290x128 1x1x290x128 1x1x330x128 1x1x330 1x1x330x128", GRAD(.causal = true)},
    {"2x2x5x8 2x2x5x8 2x2x5x8 2x2x5x8 2x2x5 2x2x5x8", GRAD(.causal = true, .window_left = 1)},
    {"1x2x200x64 1x1x200x64 1x1x200x64 1x2x200x64 1x2x200 1x2x200x64",
     GRAD(.causal = true, .window_left = 64)},
    {"1x2x200x64 1x1x200x64 1x1x200x64 1x2x200x64 1x2x200 1x2x200x64",
     GRAD(.window_left = 65, .window_right = 33)},
    {"1x1x140x80 1x1x300x80 1x1x300x80 1x1x140x80 1x1x140 1x1x140x80",
     GRAD(.causal = true, .window_left = 100)},
    {"1x1x300x128 1x1x140x128 1x1x140x128 1x1x300x128 1x1x300 1x1x300x128",
     GRAD(.window_left = 31, .window_right = 17)},
    {"1x1x300x64 1x1x520x64 1x1x520x64 1x1x300x64 1x1x300 1x1x300x64", GRAD(.window_right = 40)},
    {"1x4x66x24 1x2x66x24 1x2x66x24 1x4x66x24 1x4x66 1x4x66x24",
     GRAD(.causal = true, .dropout = 0.2, .sequence = 3, .window_left = 20)},
    {"1x2x9x5 1x2x40x5 1x2x40x5 1x2x9x5 1x2x9 1x2x9x5",
     GRAD(.window_left = 33, .window_right = 4)},
    {"2x2x5x8 2x2x5x8 2x2x5x8 2x2x5x8 2x2x5 2x2x5x8", GRAD(.causal = true, .soft_cap = 1.5)},
    {"1x2x3x4 1x2x0x4 1x2x0x4 1x2x3x4 1x2x3 1x2x3x4 2 2", GRAD(.soft_cap = 2)},
    {"2x3x17x5 2x3x33x5 2x3x33x5 2x3x17x5 2x3x17 2x3x17x5 3 3", GRAD(.soft_cap = 0.8)},
    {"2x3x17x5 2x3x33x5 2x3x33x5 2x3x17x5 2x3x17 2x3x17x5 - 3", GRAD(.causal = true)},
    {"1x4x66x24 1x2x66x24 1x2x66x24 1x4x66x24 1x4x66 1x4x66x24 4 4",
     GRAD(.causal = true, .dropout = 0.2, .sequence = 3, .soft_cap = 3)},
    {"1x2x200x64 1x1x200x64 1x1x200x64 1x2x200x64 1x2x200 1x2x200x64 2",
     GRAD(.causal = true, .window_left = 64)},
    {"1x1x65x80 1x1x130x80 1x1x130x80 1x1x65x80 1x1x65 1x1x65x80 1 1", GRAD(.soft_cap = 5)},
    {"1x2x40x128 1x2x72x128 1x2x72x128 1x2x40x128 1x2x40 1x2x40x128 2 2",
     GRAD(.causal = true, .soft_cap = 2)},
    {"1x1x19x256 1x1x35x256 1x1x35x256 1x1x19x256 1x1x19 1x1x19x256 1 1", GRAD(.soft_cap = 2)},
    {"1x2x70x16 1x1x70x16 1x1x70x16 1x2x70x16 1x2x70 1x2x70x16 - - 4", GRAD(.causal = true)},
    {"2x2x70x16 2x1x70x16 2x1x70x16 2x2x70x16 2x2x70 2x2x70x16 2 2 2x1", GRAD(.causal = true)},
    {"1x2x70x16 1x1x40x16 1x1x40x16 1x2x70x16 1x2x70 1x2x70x16 - 2", GRAD(.causal = true)},
    {"1x2x40x24 1x1x70x24 1x1x70x40 1x2x40x40 1x2x40 1x2x40x40", GRAD(.causal = true)},
    {"1x1x70x128 1x1x70x128 1x1x70x64 1x1x70x64 1x1x70 1x1x70x64", GRAD(0)},
    {"1x1x40x64 1x1x140x64 1x1x140x64 1x1x40x64 1x1x40 1x1x40x64",
     GRAD(.causal = true, .top_left = true)},
    {"1x1x90x128 1x1x40x128 1x1x40x128 1x1x90x128 1x1x90 1x1x90x128",
     GRAD(.window_left = 20, .window_right = 9, .top_left = true)},
    {"2x2x17x8 2x2x33x8 2x2x33x8 2x2x17x8 2x2x17 2x2x17x8 - - - - 2x2x17x33",
     GRAD(.bias_grad = true)},
    {"2x4x129x64 2x2x129x64 2x2x129x64 2x4x129x64 2x4x129 2x4x129x64 - - - - 1x4x129x129",
     GRAD(.causal = true, .bias_grad = true)},
    {"2x2x66x40 2x1x200x40 2x1x200x40 2x2x66x40 2x2x66 2x2x66x40 2 2 - - 2x1x1x200",
     GRAD(.soft_cap = 4, .bias_grad = true)},
    {"1x2x150x128 1x2x150x128 1x2x150x128 1x2x150x128 1x2x150 1x2x150x128 - - 4 - 1x1x150x150",
     GRAD(.window_left = 60)},
    {"2x2x200x64 2x1x200x64 2x1x200x64 2x2x200x64 2x2x200 2x2x200x64 2 2 2x5",
     GRAD(.causal = true, .soft_cap = 4)},
    {"1x2x200x64 1x1x300x64 1x1x300x64 1x2x200x64 1x2x200 1x2x200x64 - - 3 3",
     GRAD(.window_left = 33, .window_right = 9)},
    {"1x2x70x8 1x1x600x8 1x1x600x8 1x2x70x8 1x2x70 1x2x70x8 2 2",
     GRAD(.causal = true, .window_left = 270)},
    {"1x1x70x72 1x1x520x72 1x1x520x72 1x1x70x72 1x1x70 1x1x70x72 - 1",
     GRAD(.window_left = 290, .window_right = 150)},
    {"1x1x150x8 1x1x500x8 1x1x500x8 1x1x150x8 1x1x150 1x1x150x8 - - 3 3", GRAD(.soft_cap = 7)},
    {"1x1x150x72 1x1x400x72 1x1x400x72 1x1x150x72 1x1x150 1x1x150x72 - 1", GRAD(.causal = true)},
    {"1x2x66x24 1x2x66x24 1x2x66x24 1x2x66x24 1x2x66 1x2x66x24 - - 3",
     GRAD(.dropout = 0.2, .sequence = 3)},
    {"3x4x33x128 3x2x140x128 3x2x140x128 3x4x33x128 3x4x33 3x4x33x128 - - - 3x1",
     GRAD(.causal = true)},
    {"1x1x40x256 1x1x40x256 1x1x40x256 1x1x40x256 1x1x40 1x1x40x256 - - 2",
     GRAD(.causal = true)},
    {"2x2x150x64 2x1x150x64 2x1x150x64 2x2x150x64 2x2x150 2x2x150x64 - - - - - 1x1x2x1", GRAD(0)},
    {"2x4x200x64 2x2x330x64 2x2x330x64 2x4x200x64 2x4x200 2x4x200x64 - 4 - - - 1x4x13x3",
     GRAD(.block_size = 16)},
    {"2x2x130x40 2x1x300x40 2x1x300x40 2x2x130x40 2x2x130 2x2x130x40 2 - - - - 2x1x3x2",
     GRAD(.causal = true, .block_size = 64)},
    {"1x2x300x128 1x1x600x128 1x1x600x128 1x2x300x128 1x2x300 1x2x300x128 - - - - - 1x2x10x4",
     GRAD(.window_left = 290, .window_right = 150, .block_size = 32)},
    {"1x2x270x72 1x2x500x72 1x2x500x72 1x2x270x72 1x2x270 1x2x270x72 - - 3 3 - 1x1x2x2",
     GRAD(.soft_cap = 5, .block_size = 256)},
    {"1x2x66x24 1x2x90x24 1x2x90x24 1x2x66x24 1x2x66 1x2x66x24 - - - - - 1x1x5x2",
     GRAD(.dropout = 0.2, .sequence = 3, .block_size = 16)},
    {"1x1x140x256 1x1x270x256 1x1x270x256 1x1x140x256 1x1x140 1x1x140x256 - - - - 1x1x1x270 "
     "1x1x9x5",
     GRAD(.bias_grad = true, .block_size = 16)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"64x6x256x64 64x6x256x64 64x6x256x64", &drop},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64", &full},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64", &causal},
    {"32x12x1024x64 32x12x1024x64 32x12x1024x64", &causal},
    {"16x16x1024x128 16x16x1024x128 16x16x1024x128", &causal},
    {"4x16x4096x128 4x16x4096x128 4x16x4096x128", &full},
    {"4x16x4096x128 4x16x4096x128 4x16x4096x128", &causal},
    {"1x16x16384x128 1x16x16384x128 1x16x16384x128", &causal},
    {"4x32x4096x64 4x32x4096x64 4x32x4096x64", &causal},
    {"32x32x1x128 32x8x8192x128 32x8x8192x128", &full},
    {NULL, NULL}};
static const cup__sample bench_grad[] = {
    {"64x6x256x64 64x6x256x64 64x6x256x64 64x6x256x64 64x6x256 64x6x256x64",
     GRAD(.causal = true, .dropout = 0.2)},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64 8x12x2048x64 8x12x2048 8x12x2048x64", GRAD(0)},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64 8x12x2048x64 8x12x2048 8x12x2048x64",
     GRAD(.causal = true)},
    {"16x16x1024x128 16x16x1024x128 16x16x1024x128 16x16x1024x128 16x16x1024 16x16x1024x128",
     GRAD(.causal = true)},
    {"4x16x4096x128 4x16x4096x128 4x16x4096x128 4x16x4096x128 4x16x4096 4x16x4096x128", GRAD(0)},
    {"4x16x4096x128 4x16x4096x128 4x16x4096x128 4x16x4096x128 4x16x4096 4x16x4096x128",
     GRAD(.causal = true)},
    {"4x32x4096x64 4x32x4096x64 4x32x4096x64 4x32x4096x64 4x32x4096 4x32x4096x64",
     GRAD(.causal = true)},
    {NULL, NULL}};

const cup__op cup__op_attention = {
    .kind = CUP__ATTENTION,
    .infer = cup__attention_infer,
    .specification = cup__attention_specification,
    .gradient = gradient,
    .composed = cup__attention_composed,
    .impls = cup__attention_impls,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3) |
             CUP__SAVE_IN(4) | CUP__SAVE_IN(5) | CUP__SAVE_IN(6) |
             CUP__SAVE_IN(7) | CUP__SAVE_IN(8) |
             CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1),
    .in_dtypes = {[3] = CUP__NUMBERS, [4] = CUP__NUMBERS, [5] = CUP__DTYPES_INDEX,
                  [6] = CUP__DTYPES_INDEX, [8] = CUP__DTYPES_INDEX},
    .ascending = 1u << 5 | 1u << 6,
    .indices = cup__attention_places,
    .domain = {[3] = {0.01, 0.5}, [8] = {-1, 3}},
    .random = true,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .tolerance = 32, /* a score sums up to 256 products and goes through an exponential */
    .cost = cup__attention_cost,
};

const cup__op cup__op_attention_grad = {
    .kind = CUP__ATTENTION_GRAD,
    .infer = infer_grad,
    .specification = cup__attention_specification_grad,
    .impls = cup__attention_grad_impls,
    .strided_out = true,
    .samples = samples_grad,
    .bench = bench_grad,
    .domain = {[4] = {4, 6}, [6] = {0.01, 0.5}, [11] = {-1, 3}},
    .in_dtypes = {[4] = CUP__NUMBERS, [6] = CUP__NUMBERS, [7] = CUP__NUMBERS,
                  [8] = CUP__DTYPES_INDEX, [9] = CUP__DTYPES_INDEX,
                  [11] = CUP__DTYPES_INDEX},
    .ascending = 1u << 8 | 1u << 9,
    .indices = places_grad,
    .tolerance = 64, /* as attention, with a difference of two sums behind it */
    .cost = cup__attention_cost,
};
