#include "ops/matmul/epilogues.h"

#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/activation/silu.h"

/* Longer sums are added to y by the copies that store them, which takes a tile's place in shared
 * memory from nobody; shorter ones are read and added before the one rounding. */
#define READ_K_MOST 4096

static cup_tensor *input(const cup__call *call, int i)
{
    return i > 0 ? call->in[i] : NULL;
}

static const void *data_of(cup_tensor *const *in, int i)
{
    return i > 0 && in[i] ? in[i]->data : NULL;
}

void cup__product_point(const cup__call *call, cup_tensor *const *in, cup__product *p)
{
    const cup__epilogue *e = call->op->epilogue;
    p->a.data = in[e->a]->data;
    p->b.data = in[e->a + 1]->data;
    p->y.data = e->a ? in[0]->data : call->out[0] ? call->out[0]->data : NULL;
    p->bias = data_of(in, e->bias);
    p->other = p->kind && e->adding ? in[0]->data : data_of(in, e->other);
    p->pre = call->out_count > 1 && call->out[1] ? call->out[1]->data : NULL;
}

void cup__product_of(const cup__call *call, cup_tensor *const *in, cup__product *p)
{
    const cup__epilogue *e = call->op->epilogue;
    const cup__matmul_scaled_attributes *asked = call->attributes; /* as those of its kin begin */
    bool turns = e->turned == CUP__TURNED_AS_ASKED;
    cup__shape y = e->a ? cup__shape_of(in[0]) : call->result[0];
    int64_t row = y.size[y.ndim - 1];
    if (e->back && e->gated)
        y.size[y.ndim - 1] /= 2;
    cup__product_make(p, in[e->a], turns && asked->transpose_a, in[e->a + 1],
                      turns ? asked->transpose_b : e->turned == CUP__TURNED_WEIGHT, &y);
    if (e->back && e->gated && p->m > 1)
        p->y.row = row;
    p->factor = e->scaled ? asked->factor : 1;
    p->activation = e->activation;
    p->saving = call->out_count > 1;
    p->measuring = call->c->moments.wanted;
    p->adding = e->adding && (p->y_dtype == CUP_F32 || p->k > READ_K_MOST);
    p->kind = e->adding && !p->adding ? PRODUCT_ADD : e->kind;
    cup__product_point(call, in, p);
}

static cup_status infer(cup__call *call)
{
    const cup__epilogue *e = call->op->epilogue;
    CUP_TRY(cup__linear_infer(call, input(call, e->bias)));
    cup__shape *y = &call->result[0];
    int64_t *n = &y->size[y->ndim - 1];
    if (call->row->results_count > 1)
        call->result[1] = *y;
    if (e->gated && *n % 2)
        return cup__call_fail(call, CUP_SHAPE,
                              "weight has %lld rows; gate and up are as many each", (long long)*n);
    *n /= e->gated ? 2 : 1;
    if (e->other) {
        cup__shape residual = cup__shape_of(call->in[e->other]);
        if (!cup__shape_equal(&residual, y))
            return cup__call_fail(call, CUP_SHAPE, "residual must have the shape of the result");
    }
    return CUP_OK;
}

static cup_status infer_back(cup__call *call)
{
    const cup__epilogue *e = call->op->epilogue;
    cup__shape *y = &call->result[0];
    CUP_TRY(cup__matmul_infer(call, 0, false, false, y));
    CUP_TRY(cup__need_same_dtype(call, 0, e->other));
    y->size[y->ndim - 1] *= e->gated ? 2 : 1;
    cup__shape pre = cup__shape_of(call->in[e->other]);
    if (call->in[1]->ndim != 2 || !cup__shape_equal(&pre, y))
        return cup__call_fail(call, CUP_SHAPE, "pre must %s dy weight",
                              e->gated ? "be twice as wide as" : "have the shape of");
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup__epilogue *e = call->op->epilogue;
    cup_tensor *y = call->out[0], *pre = call->out_count > 1 ? call->out[1] : NULL;
    const cup_tensor *bias = input(call, e->bias), *other = input(call, e->other);
    int64_t n = call->in[1]->shape[0] / (e->gated ? 2 : 1);
    for (int64_t i = 0; i < y->count; i++) {
        int64_t row = i / n, at = e->gated ? i + row * n : i;
        double v = cup__linear_element(call, bias, row, i % n), with = 0;
        if (e->gated)
            with = cup__linear_element(call, bias, row, n + i % n);
        else if (other)
            with = cup__load(other, cup__offset_of(other, i));
        if (pre)
            cup__store(pre, at, v);
        if (pre && e->gated)
            cup__store(pre, at + n, with);
        cup__store(y, i, e->value ? e->value(v, with) : v);
    }
    return CUP_OK;
}

static cup_status specification_back(cup__call *call)
{
    const cup__epilogue *e = call->op->epilogue;
    cup_tensor *y = call->out[0];
    const cup_tensor *dy = call->in[0], *weight = call->in[1], *pre = call->in[e->other];
    int64_t depth = weight->shape[0], n = weight->shape[1];
    for (int64_t i = 0; n && i < y->count / (e->gated ? 2 : 1); i++) {
        int64_t row = i / n, j = i % n, at = e->gated ? i + row * n : i;
        double d = 0, out[2] = {0};
        for (int64_t k = 0; k < depth; k++)
            d += cup__load(dy, cup__offset_of(dy, row * depth + k)) *
                 cup__load(weight, k * weight->stride[0] + j * weight->stride[1]);
        double up = e->gated ? cup__load(pre, cup__offset_of(pre, at + n)) : 0;
        e->slopes(cup__load(pre, cup__offset_of(pre, at)), up, d, out);
        cup__store(y, at, out[0]);
        if (e->gated)
            cup__store(y, at + n, out[1]);
    }
    return CUP_OK;
}

cup_tensor *cup__epilogue_back(cup_context *c, const cup__epilogue *e, cup_tensor *at,
                               cup_tensor *dy, cup_tensor *y)
{
    cup__concat_attributes last = {-1};
    cup_tensor *d[CUP__MAX_OUT] = {NULL}, *out[CUP__MAX_OUT] = {y};
    const cup__row *row = &cup__rows[e->grad_op];
    if (!e->gated)
        return cup__op_call(c, row, (cup_tensor *[]){at, dy}, 2, NULL, out);
    cup_tensor *gate = cup__half_of(c, at, 0), *up = cup__half_of(c, at, 1);
    if (cup__op_call(c, row, (cup_tensor *[]){gate, up, dy}, 3, NULL, d))
        y = cup__op_call(c, &cup__rows[CUP__OP_concat], d, 2, &last, out);
    cup_tensor *used[] = {gate, up, d[0], d[1]};
    for (int i = 0; i < 4; i++)
        cup_tensor_free(used[i]);
    return c->error.status == CUP_OK ? y : NULL;
}

static cup_status gradient(cup__grad *g)
{
    const cup__epilogue *e = g->row->op->epilogue;
    cup_tensor *dy = g->d_out[0], *past = g->out_count > 1 ? g->d_out[1] : NULL;
    if (e->other && g->wanted[e->other])
        g->d_in[e->other] = dy;
    if (dy && e->grad_op)
        dy = cup__epilogue_back(g->c, e, g->out[!e->by_result], dy, NULL);
    /* What comes back may have been taken through the activation already. */
    if (past)
        dy = dy ? cup_add(g->c, dy, past) : past;
    return dy ? cup__linear_back(g, dy, e->bias) : g->c->error.status;
}

/* Without the gradient before the activation each part would compute that. */
static bool apart(const cup__op *op, cup_tensor *const *d_out)
{
    return !d_out[0] || !op->epilogue->grad_op;
}

/* Matrices x alone, of which the first rows are taken; and what is added to the result. */
static uint32_t by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                         const void *attributes)
{
    (void)in_count, (void)attributes;
    uint32_t other = op->epilogue->other ? 1u << op->epilogue->other : 0;
    return in[0]->ndim > 1 && !op->random ? 1 | other : 0;
}

/* The activation's own composed gradient, where the sum before it was saved, or its result. */
static cup_tensor *composed_back(cup__grad *g, cup_tensor *dy)
{
    cup_context *c = g->c;
    const cup__epilogue *e = g->row->op->epilogue;
    const cup__row *row = &cup__rows[e->op];
    cup_tensor *at = g->out[!e->by_result], *d[2] = {NULL}, *parts[2];
    cup__shape half = cup__shape_of(at);
    int last = half.ndim - 1;
    if (!e->gated) {
        cup__composed_of(c, row, &at, 1, at, dy, d);
        return d[0];
    }
    half.size[last] /= 2;
    for (int i = 0; i < 2; i++) {
        int64_t starts[CUP_MAX_DIMS] = {0};
        starts[last] = i * half.size[last];
        parts[i] = cup_slice(c, at, starts, half.ndim, half.size, half.ndim);
    }
    cup__composed_of(c, row, parts, 2, NULL, dy, d);
    return cup_concat(c, d, 2, last);
}

static cup_status composed(cup__grad *g)
{
    const cup__epilogue *e = g->row->op->epilogue;
    cup_tensor *dy = g->d_out[0], *past = g->out_count > 1 ? g->d_out[1] : NULL;
    if (e->other && g->wanted[e->other])
        g->d_in[e->other] = dy;
    if (dy && e->grad_op)
        dy = composed_back(g, dy);
    if (past)
        dy = dy ? cup_add(g->c, dy, past) : past;
    return dy ? cup__linear_back(g, dy, e->bias) : g->c->error.status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup__epilogue *e = call->op->epilogue;
    const cup_tensor *x = call->in[0], *weight = call->in[1], *y = call->out[0];
    int64_t depth = weight->shape[!e->back], rows = depth ? x->count / depth : 0;
    int64_t moved = x->count + weight->count + y->count + (e->other ? y->count : 0);
    if (call->out_count > 1)
        moved += call->out[1]->count;
    *flops = 2.0 * (double)rows * (double)weight->count;
    *bytes = (double)(moved * cup_dtype_size(y->dtype));
}

static double gelu(double v, double with)
{
    (void)with;
    return cup__gelu(v);
}

static void gelu_slopes(double v, double with, double d, double out[2])
{
    (void)with;
    out[0] = d * cup__gelu_slope(v);
}

static double relu(double v, double with)
{
    (void)with;
    return v < 0 ? 0 : v;
}

static double silu(double v, double with)
{
    (void)with;
    return cup__silu(v);
}

static double swiglu(double v, double with)
{
    return cup__silu(v) * with;
}

static void swiglu_slopes(double v, double with, double d, double out[2])
{
    out[0] = d * with * cup__silu_slope(v);
    out[1] = d * cup__silu(v);
}

static double sum(double v, double with)
{
    return v + with;
}

static const cup__sample plain_samples[] = {
    {"0x5 3x5 3", NULL},      {"4x0 3x0 3", NULL},     {"7 5x7 5", NULL},
    {"1x1 1x1 1", NULL},      {"3x5 9x5 -", NULL},     {"2x3x5 9x5 9", NULL},
    {"2x33x65 129x65 129", NULL}, {"130x70 520x70 520", NULL},
    {"0x3x5 4x5 4", NULL},    {"2x0x8 16x8 16", NULL}, {"3x5 0x5 0", NULL},
    {"2x3x0 4x0 -", NULL},    {"9x8 16x8 16", NULL},   {"17x16 8x16 -", NULL},
    {"3x20x64 130x64 130", NULL}, {"5x24 12x24 12", NULL}, {"33x20 36x20 36", NULL},
    {"60x104 642x104 642", NULL}, {"20x200 336x200 336", NULL}, {"2x16x72 1026x72 -", NULL},
    {NULL, NULL}};
static const cup__sample activated_samples[] = {
    {"0x5 3x5 3", NULL},      {"4x0 3x0 3", NULL},           {"7 5x7 5", NULL},
    {"1x1 1x1 1", NULL},      {"3x5 9x5 -", NULL},           {"2x3x5 9x5 9", NULL},
    {"2x33x65 129x65 129", NULL}, {"130x72 520x72 520", NULL}, {"130x72 520x72 -", NULL},
    {"0x3x5 4x5 4", NULL},    {"3x5 0x5 0", NULL},           {"2x3x0 4x0 -", NULL},
    {"9x8 16x8 16", NULL},    {"3x20x64 130x64 130", NULL},  {"17x16 8x16 -", NULL},
    {"60x104 642x104 642", NULL}, {"20x200 336x200 336", NULL}, {NULL, NULL}};
static const cup__sample gated_samples[] = {
    {"0x5 4x5 4", NULL},      {"4x0 6x0 6", NULL},           {"7 6x7 6", NULL},
    {"1x1 2x1 2", NULL},      {"3x5 18x5 -", NULL},          {"2x33x65 130x65 130", NULL},
    {"130x72 528x72 528", NULL}, {"300x200 784x200 -", NULL},
    {"0x3x5 4x5 4", NULL},    {"3x5 0x5 0", NULL},           {"2x3x0 4x0 -", NULL},
    {"9x8 16x8 16", NULL},    {"3x20x64 130x64 130", NULL},  {"17x16 8x16 -", NULL},
    {"1x8 16x8 16", NULL},    {"5x24 48x24 48", NULL},       {NULL, NULL}};
static const cup__sample added_samples[] = {
    {"0x5 3x5 0x3 3", NULL},  {"4x0 3x0 4x3 3", NULL},       {"7 5x7 5 5", NULL},
    {"1x1 1x1 1x1 -", NULL},  {"2x3x5 9x5 2x3x9 9", NULL},   {"2x33x65 129x65 2x33x129 -", NULL},
    {"130x72 520x72 130x520 520", NULL}, {"300x200 72x200 300x72 -", NULL},
    {"0x3x5 4x5 0x3x4 4", NULL}, {"3x5 0x5 3x0 0", NULL},    {"2x3x0 4x0 2x3x4 -", NULL},
    {"9x8 16x8 9x16 16", NULL}, {"60x64 130x64 60x130 130", NULL}, {"17x16 8x16 17x8 -", NULL},
    {NULL, NULL}};
static const cup__sample gelu_samples[] = {
    {"0x5 5x3 0x3", NULL},    {"3x0 0x4 3x4", NULL},   {"1x1 1x1 1x1", NULL},
    {"5x3 3x9 5x9", NULL},    {"2x5x4 4x8 2x5x8", NULL}, {"65x72 72x136 65x136", NULL},
    {"300x136 136x264 300x264", NULL},
    {"0x3x5 5x4 0x3x4", NULL}, {"2x3x0 0x4 2x3x4", NULL}, {"3x5 5x0 3x0", NULL},
    {"9x16 16x8 9x8", NULL},   {"3x20x64 64x130 3x20x130", NULL}, {"17x8 8x16 17x16", NULL},
    {NULL, NULL}};
static const cup__sample swiglu_samples[] = {
    {"0x5 5x3 0x6", NULL},    {"3x0 0x4 3x8", NULL},   {"1x1 1x1 1x2", NULL},
    {"5x3 3x9 5x18", NULL},   {"2x5x4 4x8 2x5x16", NULL}, {"65x72 72x136 65x272", NULL},
    {"300x136 136x264 300x528", NULL},
    {"0x3x5 5x4 0x3x8", NULL}, {"2x3x0 0x4 2x3x8", NULL}, {"3x5 5x0 3x0", NULL},
    {"9x16 16x8 9x16", NULL},  {"3x20x64 64x130 3x20x260", NULL}, {"17x8 8x16 17x32", NULL},
    {"1x8 8x8 1x16", NULL},    {NULL, NULL}};
static const cup__sample plain_bench[] = {{"1024x512 768x512 768", NULL},
                                          {"32768x768 3072x768 3072", NULL},
                                          {"8192x4096 14336x4096 14336", NULL},
                                          {NULL, NULL}};
static const cup__sample activated_bench[] = {{"32768x768 3072x768 3072", NULL},
                                              {"8192x4096 14336x4096 14336", NULL},
                                              {NULL, NULL}};
static const cup__sample gated_bench[] = {{"8192x4096 28672x4096 -", NULL}, {NULL, NULL}};
static const cup__sample added_bench[] = {{"32768x3072 768x3072 32768x768 768", NULL},
                                          {"8192x14336 4096x14336 8192x4096 -", NULL},
                                          {NULL, NULL}};
static const cup__sample gelu_bench[] = {{"32768x768 768x3072 32768x3072", NULL}, {NULL, NULL}};
static const cup__sample swiglu_bench[] = {{"8192x4096 4096x14336 8192x28672", NULL},
                                           {NULL, NULL}};

#define MATMUL(name, ...)                                                                          \
    const cup__epilogue cup__epilogue_##name = {.turned = CUP__TURNED_AS_ASKED, __VA_ARGS__};
#define LINEAR(name, list, tried, rounding, kept, through, ...)                                    \
    static const cup__epilogue name##_row = {                                                      \
        .turned = CUP__TURNED_WEIGHT, .compose = cup__compose_linear, __VA_ARGS__};                \
    const cup__op cup__op_##name = {                                                               \
        .epilogue = &name##_row,                                                                   \
        .infer = infer,                                                                            \
        .specification = specification,                                                            \
        .gradient = gradient,                                                                      \
        .composed = composed,                                                                      \
        .past = (through),                                                                         \
        .apart = apart,                                                                            \
        .again = (kept) == CUP__SAVE_OUT(1) ? cup__activation_again : NULL,                        \
        .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | (kept),                                       \
        .words = cup__product_words,                                                               \
        .impls = (list),                                                                           \
        .by_rows = 1,                                                                              \
        .by_texts = by_texts,                                                                      \
        .samples = tried##_samples,                                                                \
        .bench = tried##_bench,                                                                    \
        .tolerance = (rounding),                                                                   \
        .cost = cost,                                                                              \
    };
#define BACK(name, tried, rounding, ...)                                                           \
    static const cup__epilogue name##_row = {.turned = CUP__TURNED_NEITHER,                        \
                                             .other = 2,                                           \
                                             .back = true,                                         \
                                             .compose = cup__compose_back,                         \
                                             __VA_ARGS__};                                         \
    const cup__op cup__op_##name = {                                                               \
        .epilogue = &name##_row,                                                                   \
        .infer = infer_back,                                                                       \
        .specification = specification_back,                                                       \
        .words = cup__product_words,                                                               \
        .impls = cup__product_fused_impls,                                                         \
        .samples = tried##_samples,                                                                \
        .bench = tried##_bench,                                                                    \
        .tolerance = (rounding),                                                                   \
        .cost = cost,                                                                              \
    };
#include "ops/matmul/epilogues.def"
