/* conv2d with what stands behind it, in one pass: a residual, and an activation. */
#include <stddef.h>
#include <string.h>

#include "dispatch/attributes.h"
#include "ops/conv/conv.h"
#include "ops/matmul/epilogues.h"
#include "ops/shape/copy.h"

typedef cup__conv2d_join_attributes attributes;

/* The table of epilogues says what an activation is, in the rows of linear layers. */
static const cup__epilogue *of_activation(int activation)
{
    static const cup__op *const rows[] = {[CUP_ACTIVATION_RELU] = &cup__op_linear_relu,
                                          [CUP_ACTIVATION_GELU] = &cup__op_linear_gelu,
                                          [CUP_ACTIVATION_SILU] = &cup__op_linear_silu};
    return activation ? rows[activation]->epilogue : NULL;
}

const cup__epilogue *cup__conv_follower(const cup__call *call)
{
    return of_activation(((const attributes *)call->attributes)->activation);
}

static cup_status infer(cup__call *call)
{
    const attributes *a = call->attributes;
    if (a->activation < 0 || a->activation > CUP_ACTIVATION_SILU)
        return cup__call_fail(call, CUP_ARGUMENT, "the activation must be relu, gelu or silu");
    CUP_TRY(cup__conv_infer(call));
    const cup_tensor *residual = call->in[3];
    if (!residual)
        return CUP_OK;
    CUP_TRY(cup__need_same_dtype(call, 0, 3));
    cup__shape shape = cup__shape_of(residual);
    if (!cup__shape_equal(&shape, &call->result[0]))
        return cup__call_fail(call, CUP_SHAPE, "residual must have the shape of the result");
    return CUP_OK;
}

/* Of sums that are not rounded before. */
static cup_status specification(cup__call *call)
{
    const cup__epilogue *e = cup__conv_follower(call);
    cup_tensor *y = call->out[0];
    const cup_tensor *residual = call->in[3];
    cup__shape shape = call->result[0];
    shape.dtype = CUP_F64;
    cup_tensor *sums = call->out[0] = cup__tensor_make(call->c, &shape, "conv2d_join");
    cup_status status = sums ? cup__conv_specification(call) : call->c->error.status;
    call->out[0] = y;
    for (int64_t i = 0; i < y->count && status == CUP_OK; i++) {
        double v = cup__load(sums, i);
        v += residual ? cup__load(residual, cup__offset_of(residual, i)) : 0;
        cup__store(y, cup__offset_of(y, i), e ? e->value(v, 0) : v);
    }
    cup_tensor_free(sums);
    return status;
}

/* [N,H,W,C] of it. */
static cup_tensor *turned(cup_context *c, cup_tensor *t)
{
    return t ? cup_permute(c, t, (int64_t[]){0, 2, 3, 1}, 4) : NULL;
}

/* What follows the sums in y, all of which lies row by row. */
static cup_status follow(cup__call *call, cup_tensor *y, cup_tensor *residual)
{
    const cup__epilogue *e = cup__conv_follower(call);
    cup_tensor *in[] = {y, residual};
    if (residual && e && e->op == CUP__OP_relu)
        return cup__call_into(call->c, CUP__OP_add_relu, in, 2, NULL, y);
    if (residual)
        CUP_TRY(cup__call_into(call->c, CUP__OP_add, in, 2, NULL, y));
    return e ? cup__call_into(call->c, e->op, in, 1, NULL, y) : CUP_OK;
}

/* Those of conv2d, as which they begin. */
static cup__conv2d_attributes plain_of(const attributes *a)
{
    cup__conv2d_attributes plain = {.groups = a->groups};
    _Static_assert(offsetof(attributes, groups) == offsetof(cup__conv2d_attributes, groups),
                   "the attributes of conv2d come first");
    memcpy(&plain, a, offsetof(attributes, groups));
    return plain;
}

/* The sums go into y, of which `lines` is [N,H,W,O]. */
static cup_status sum_up(cup__call *call, cup_tensor *y, cup_tensor *lines)
{
    cup_context *c = call->c;
    const cup__conv2d_attributes plain = plain_of(call->attributes);
    const cup__conv v = cup__conv_of(call);
    if (!lines->contiguous || !cup__conv_is_product(&v.call))
        return cup__call_into(c, CUP__OP_conv2d, call->in, 3, &plain, y);
    cup_tensor *weight = call->in[1], *x = turned(c, call->in[0]);
    weight = x ? cup_reshape(c, weight, 2, weight->shape) : NULL;
    if (weight)
        cup__call_into(c, CUP__OP_linear, (cup_tensor *[]){x, weight, call->in[2]}, 3, NULL,
                       lines);
    cup_tensor_free(weight);
    cup_tensor_free(x);
    return c->error.status;
}

static cup_status compose(cup__call *call, cup_tensor *y)
{
    cup_context *c = call->c;
    cup_tensor *lines = turned(c, y), *residual = lines ? turned(c, call->in[3]) : NULL;
    bool planes = y->contiguous;
    if (c->error.status == CUP_OK && sum_up(call, y, lines) == CUP_OK)
        follow(call, planes ? y : lines, planes ? call->in[3] : residual);
    cup_tensor_free(residual);
    cup_tensor_free(lines);
    return c->error.status;
}

/* Whether elementwise ops can write to it, perhaps turned. */
static bool is_dense(const cup_tensor *t)
{
    const int64_t *n = t->shape, *s = t->stride;
    return t->contiguous ||
           (s[1] == 1 && s[3] == n[1] && s[2] == n[3] * s[3] && s[0] == n[2] * s[2]);
}

cup_status cup__conv_join_compose(cup__call *call)
{
    cup_tensor *y = call->out[0];
    if (is_dense(y))
        return compose(call, y);
    cup_tensor *own = cup__tensor_make(call->c, &call->result[0], "conv2d_join");
    if (own && compose(call, own) == CUP_OK)
        cup__copy_to(call->c, y, own);
    cup_tensor_free(own);
    return call->c->error.status;
}

/* What the activation gets, made once more where its gradient does not ask for the result. */
static cup_tensor *before(const cup__grad *g, const cup__epilogue *e)
{
    const cup__conv2d_attributes plain = plain_of(g->attributes);
    cup_tensor *in[] = {g->in[0], g->in[1], g->in[2]};
    if (e->by_result)
        return g->out[0];
    cup_tensor *y = cup__op_call(g->c, &cup__rows[CUP__OP_conv2d], in, 3, &plain, NULL);
    return g->in[3] ? cup_add(g->c, y, g->in[3]) : y;
}

static cup_status spread(cup__grad *g, cup_tensor *dy)
{
    const attributes *a = g->attributes;
    const int64_t *x = g->in_shape[0].size;
    if (g->wanted[0])
        g->d_in[0] = cup__conv2d_input_grad(g->c, dy, g->in[1], a->stride, a->stride_count,
                                            a->padding, a->padding_count, a->same, a->dilation,
                                            a->dilation_count, a->groups, x[2], x[3]);
    if (g->wanted[1])
        cup__conv_weight_back(g, dy, g->in[0], 2);
    if (g->wanted[2])
        g->d_in[2] = cup_sum(g->c, dy, (int64_t[]){0, 2, 3}, 3, false);
    if (g->wanted[3])
        g->d_in[3] = dy;
    return g->c->error.status;
}

static cup_status gradient(cup__grad *g)
{
    const cup__epilogue *e = of_activation(((const attributes *)g->attributes)->activation);
    cup_tensor *dy = g->d_out[0];
    if (e)
        dy = cup__epilogue_back(g->c, e, before(g, e), dy, NULL);
    return dy ? spread(g, dy) : g->c->error.status;
}

static cup_status composed(cup__grad *g)
{
    const cup__epilogue *e = of_activation(((const attributes *)g->attributes)->activation);
    cup_tensor *d[1] = {g->d_out[0]}, *at = e ? before(g, e) : NULL;
    if (at)
        cup__composed_of(g->c, &cup__rows[e->op], &at, 1, at, g->d_out[0], d);
    return d[0] ? spread(g, d[0]) : g->c->error.status;
}

#define ONE(a) {a}, 1
#define TWO(a, b) {a, b}, 2
#define NONE {0}, 0
static const attributes relu_plain = {NONE, NONE, false, NONE, 1, CUP_ACTIVATION_RELU},
                        relu_three = {NONE, ONE(1), false, NONE, 1, CUP_ACTIVATION_RELU},
                        relu_half = {ONE(2), ONE(1), false, NONE, 1, CUP_ACTIVATION_RELU},
                        relu_first = {ONE(2), ONE(3), false, NONE, 1, CUP_ACTIVATION_RELU},
                        relu_groups = {NONE, ONE(1), false, NONE, 2, CUP_ACTIVATION_RELU},
                        gelu_three = {NONE, ONE(1), false, NONE, 1, CUP_ACTIVATION_GELU},
                        gelu_plain = {NONE, NONE, false, NONE, 1, CUP_ACTIVATION_GELU},
                        silu_odd = {TWO(1, 2), TWO(2, 0), false, TWO(2, 1), 1,
                                    CUP_ACTIVATION_SILU},
                        silu_plain = {NONE, NONE, false, NONE, 1, CUP_ACTIVATION_SILU},
                        none_same = {NONE, NONE, true, NONE, 1, CUP_ACTIVATION_NONE},
                        by_channel = {NONE, ONE(1), false, NONE, 6, CUP_ACTIVATION_SILU};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1 -", &relu_plain},        {"2x3x5x7 4x3x3x3 4 2x4x3x5", &relu_plain},
    {"2x3x8x9 4x3x3x3 - 2x4x8x9", &relu_three},  {"0x3x5x5 4x3x3x3 4 0x4x5x5", &relu_three},
    {"2x0x5x5 4x0x3x3 4 2x4x5x5", &relu_three},  {"1x7x9x8 5x7x3x3 5 -", &relu_half},
    {"2x16x6x7 24x16x1x1 24 2x24x6x7", &relu_plain}, {"2x16x6x7 24x16x1x1 - -", &relu_plain},
    {"3x64x9x5 136x64x1x1 136 3x136x9x5", &gelu_plain},
    {"2x40x8x9 72x40x1x1 72 2x72x8x9", &silu_plain},
    {"1x64x9x11 72x64x3x3 72 1x72x9x11", &relu_three}, {"1x64x9x11 72x64x3x3 72 -", &gelu_three},
    {"3x16x16x24 24x16x3x3 24 3x24x16x24", &gelu_three},
    {"1x32x20x18 130x32x3x3 130 1x130x10x9", &relu_half},
    {"3x72x13x11 96x72x3x3 - 3x96x7x6", &relu_half},
    {"2x24x9x12 40x24x3x2 40 2x40x9x6", &silu_odd}, {"2x24x9x12 40x24x3x2 - -", &silu_odd},
    {"3x3x23x21 64x3x7x7 64 -", &relu_first},    {"2x3x23x21 32x3x7x7 32 2x32x12x11", &relu_first},
    {"1x128x7x8 128x64x3x3 128 1x128x7x8", &relu_groups},
    {"2x6x9x10 6x1x3x3 6 2x6x9x10", &by_channel}, {"2x16x9x10 24x16x3x3 24 2x24x9x10", &none_same},
    {"1x512x2x2 512x512x3x3 512 1x512x2x2", &relu_three},
    {"3x3x9x7 64x3x1x1 64 3x64x9x7", &relu_plain}, {"2x4x9x7 33x4x1x1 33 -", &gelu_plain},
    {"2x64x9x7 2x64x1x1 2 2x2x9x7", &silu_plain}, {"2x40x9x7 4x40x1x1 - 2x4x9x7", &relu_plain},
    {NULL, NULL}};
static const cup__sample bench[] = {{"64x64x56x56 64x64x3x3 64 -", &relu_three},
                                    {"64x64x56x56 256x64x1x1 256 64x256x56x56", &relu_plain},
                                    {NULL, NULL}};

const cup__op cup__op_conv2d_join = {
    .kind = CUP__CONV_FORWARD,
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3) |
             CUP__SAVE_OUT(0),
    .impls = cup__conv_join_impls,
    .images = true,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .tolerance = 32, /* as conv2d; composed, what is added and activated was rounded before */
    .cost = cup__conv_cost,
};
