/* Linear layers with more in the same pass: an activation, a gate, a residual sum. */
#include "dispatch/attributes.h"
#include "ops/activation/silu.h"
#include "ops/matmul/product_fused.h"

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__linear_infer(call, call->in[2]));
    call->result[1] = call->result[0];
    return CUP_OK;
}

static cup_status infer_swiglu(cup__call *call)
{
    CUP_TRY(infer(call));
    cup__shape *y = &call->result[0];
    int64_t *n = &y->size[y->ndim - 1];
    if (*n % 2)
        return cup__call_fail(call, CUP_SHAPE,
                              "weight has %lld rows; gate and up are as many each", (long long)*n);
    *n /= 2;
    return CUP_OK;
}

static cup_status infer_add(cup__call *call)
{
    CUP_TRY(cup__linear_infer(call, call->in[3]));
    cup__shape residual = cup__shape_of(call->in[2]);
    if (!cup__shape_equal(&residual, &call->result[0]))
        return cup__call_fail(call, CUP_SHAPE, "residual must have the shape of the result");
    return CUP_OK;
}

/* sum over k of x[row, k] weight[j, k], plus bias[j]. */
static double dot(const cup__call *call, const cup_tensor *bias, int64_t row, int64_t j)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    double sum = bias ? cup__load(bias, j * bias->stride[0]) : 0;
    for (int64_t k = 0; k < weight->shape[1]; k++)
        sum += cup__load(x, cup__offset_of(x, row * weight->shape[1] + k)) *
               cup__load(weight, j * weight->stride[0] + k * weight->stride[1]);
    return sum;
}

static cup_status specification(cup__call *call)
{
    cup_tensor *y = call->out[0], *pre = call->out_count > 1 ? call->out[1] : NULL;
    const cup_tensor *bias = call->in[2];
    int64_t n = call->in[1]->shape[0];
    for (int64_t i = 0; i < y->count; i++) {
        double v = dot(call, bias, i / n, i % n);
        if (pre)
            cup__store(pre, i, v);
        cup__store(y, i, call->op->kind == CUP__LINEAR_RELU ? (v < 0 ? 0 : v) : cup__silu(v));
    }
    return CUP_OK;
}

static cup_status specification_swiglu(cup__call *call)
{
    cup_tensor *y = call->out[0], *pre = call->out_count > 1 ? call->out[1] : NULL;
    const cup_tensor *bias = call->in[2];
    int64_t n = call->in[1]->shape[0] / 2;
    for (int64_t i = 0; i < y->count; i++) {
        double gate = dot(call, bias, i / n, i % n), up = dot(call, bias, i / n, n + i % n);
        if (pre) {
            cup__store(pre, i / n * 2 * n + i % n, gate);
            cup__store(pre, i / n * 2 * n + n + i % n, up);
        }
        cup__store(y, i, cup__silu(gate) * up);
    }
    return CUP_OK;
}

static cup_status specification_add(cup__call *call)
{
    cup_tensor *y = call->out[0];
    const cup_tensor *residual = call->in[2];
    int64_t n = call->in[1]->shape[0];
    for (int64_t i = 0; i < y->count; i++)
        cup__store(y, i,
                   dot(call, call->in[3], i / n, i % n) +
                       cup__load(residual, cup__offset_of(residual, i)));
    return CUP_OK;
}

static cup_status gradient_relu(cup__grad *g)
{
    return cup__linear_back(g, cup__relu_grad(g->c, g->out[0], g->d_out[0]), 2);
}

static cup_status gradient_silu(cup__grad *g)
{
    return cup__linear_back(g, cup__silu_grad(g->c, g->out[1], g->d_out[0]), 2);
}

static cup_status gradient_swiglu(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *dy = NULL;
    if (g->d_out[0]) {
        cup_tensor *part[2] = {NULL};
        cup_tensor *gate = cup__half_of(c, g->out[1], 0), *up = cup__half_of(c, g->out[1], 1);
        CUP_TRY(cup__swiglu_grad(c, gate, up, g->d_out[0], &part[0], &part[1]));
        dy = cup_concat(c, part, 2, -1);
    }
    /* What comes back may have been taken through swiglu already. */
    if (g->d_out[1])
        dy = dy ? cup_add(c, dy, g->d_out[1]) : g->d_out[1];
    return cup__linear_back(g, dy, 2);
}

static cup_status gradient_add(cup__grad *g)
{
    if (g->wanted[2])
        g->d_in[2] = g->d_out[0];
    return cup__linear_back(g, g->d_out[0], 3);
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1], *y = call->out[0];
    int64_t rows = weight->shape[1] ? x->count / weight->shape[1] : 0, moved = x->count + y->count;
    if (call->op->kind == CUP__LINEAR_ADD)
        moved += y->count;
    if (call->out_count > 1)
        moved += call->out[1]->count;
    *flops = 2.0 * (double)rows * (double)weight->count;
    *bytes = (double)((moved + weight->count) * cup_dtype_size(y->dtype));
}

static const cup__sample samples[] = {
    {"0x5 3x5 3", NULL},      {"4x0 3x0 3", NULL},           {"7 5x7 5", NULL},
    {"1x1 1x1 1", NULL},      {"3x5 9x5 -", NULL},           {"2x3x5 9x5 9", NULL},
    {"2x33x65 129x65 129", NULL}, {"130x72 520x72 520", NULL}, {"130x72 520x72 -", NULL},
    {"0x3x5 4x5 4", NULL},    {"3x5 0x5 0", NULL},           {"2x3x0 4x0 -", NULL},
    {"9x8 16x8 16", NULL},    {"3x20x64 130x64 130", NULL},  {"17x16 8x16 -", NULL},
    {NULL, NULL}};
static const cup__sample swiglu_samples[] = {
    {"0x5 4x5 4", NULL},      {"4x0 6x0 6", NULL},           {"7 6x7 6", NULL},
    {"1x1 2x1 2", NULL},      {"3x5 18x5 -", NULL},          {"2x33x65 130x65 130", NULL},
    {"130x72 528x72 528", NULL}, {"300x200 784x200 -", NULL},
    {"0x3x5 4x5 4", NULL},    {"3x5 0x5 0", NULL},           {"2x3x0 4x0 -", NULL},
    {"9x8 16x8 16", NULL},    {"3x20x64 130x64 130", NULL},  {"17x16 8x16 -", NULL},
    {"1x8 16x8 16", NULL},    {"5x24 48x24 48", NULL},       {NULL, NULL}};
static const cup__sample add_samples[] = {
    {"0x5 3x5 0x3 3", NULL},  {"4x0 3x0 4x3 3", NULL},       {"7 5x7 5 5", NULL},
    {"1x1 1x1 1x1 -", NULL},  {"2x3x5 9x5 2x3x9 9", NULL},   {"2x33x65 129x65 2x33x129 -", NULL},
    {"130x72 520x72 130x520 520", NULL}, {"300x200 72x200 300x72 -", NULL},
    {"0x3x5 4x5 0x3x4 4", NULL}, {"3x5 0x5 3x0 0", NULL},    {"2x3x0 4x0 2x3x4 -", NULL},
    {"9x8 16x8 9x16 16", NULL}, {"60x64 130x64 60x130 130", NULL}, {"17x16 8x16 17x8 -", NULL},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32768x768 3072x768 3072", NULL},
                                    {"8192x4096 14336x4096 14336", NULL},
                                    {NULL, NULL}};
static const cup__sample swiglu_bench[] = {{"8192x4096 28672x4096 -", NULL}, {NULL, NULL}};
static const cup__sample add_bench[] = {{"32768x3072 768x3072 32768x768 768", NULL},
                                        {"8192x14336 4096x14336 8192x4096 -", NULL},
                                        {NULL, NULL}};

const cup__op cup__op_linear_relu = {
    .kind = CUP__LINEAR_RELU,
    .infer = infer,
    .specification = specification,
    .gradient = gradient_relu,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(0),
    .impls = cup__product_fused_impls,
    .samples = samples,
    .bench = bench,
    .tolerance = 8, /* sums of up to 72 products */
    .cost = cost,
};

const cup__op cup__op_linear_silu = {
    .kind = CUP__LINEAR_SILU,
    .infer = infer,
    .specification = specification,
    .gradient = gradient_silu,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1),
    .impls = cup__product_fused_impls,
    .samples = samples,
    .bench = bench,
    .tolerance = 16, /* as linear; and composed, what is activated was rounded before */
    .cost = cost,
};

const cup__op cup__op_linear_swiglu = {
    .kind = CUP__LINEAR_SWIGLU,
    .infer = infer_swiglu,
    .specification = specification_swiglu,
    .gradient = gradient_swiglu,
    .past = cup__matmul_swiglu_grad,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1),
    .impls = cup__product_fused_impls,
    .samples = swiglu_samples,
    .bench = swiglu_bench,
    .tolerance = 32, /* the product of two such sums of up to 200 products */
    .cost = cost,
};

const cup__op cup__op_linear_add = {
    .kind = CUP__LINEAR_ADD,
    .infer = infer_add,
    .specification = specification_add,
    .gradient = gradient_add,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .impls = cup__product_fused_impls,
    .samples = add_samples,
    .bench = add_bench,
    .tolerance = 16, /* sums of up to 200 products */
    .cost = cost,
};
