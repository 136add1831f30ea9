#include <string.h>

#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/wgmma.h"

cup_status cup__linear_infer(cup__call *call, const cup_tensor *bias)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    for (int i = 0; i < 2; i++)
        CUP_TRY(cup__need_float(call, i));
    for (int i = 1; i < call->in_count; i++)
        CUP_TRY(cup__need_same_dtype(call, 0, i));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_ndim(call, 1, 2, 2));
    int64_t k = x->shape[x->ndim - 1];
    if (k != weight->shape[1])
        return cup__call_fail(call, CUP_SHAPE,
                              "x has %lld features and weight [N,K] takes %lld%s", (long long)k,
                              (long long)weight->shape[1],
                              k == weight->shape[0] ? "; transpose weight?" : "");
    if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[0]))
        return cup__call_fail(call, CUP_SHAPE, "bias must have the shape [%lld]",
                              (long long)weight->shape[0]);
    call->result[0] = cup__shape_of(x);
    call->result[0].size[x->ndim - 1] = weight->shape[0];
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    if (dy->ndim != x->ndim || memcmp(dy->shape, x->shape, sizeof(int64_t) * (size_t)(x->ndim - 1)))
        return cup__call_fail(call, CUP_SHAPE, "all dimensions but the last must be the same");
    int64_t n = dy->shape[dy->ndim - 1], k = x->shape[x->ndim - 1];
    call->result[0] = (cup__shape){.dtype = x->dtype, .ndim = 2, .size = {n, k}};
    call->result[1] = (cup__shape){.dtype = x->dtype, .ndim = 1, .size = {n}};
    return CUP_OK;
}

double cup__linear_element(const cup__call *call, const cup_tensor *bias, int64_t row, int64_t j)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    long double sum = bias ? cup__load(bias, j * bias->stride[0]) : 0;
    for (int64_t k = 0; k < weight->shape[1]; k++)
        sum += cup__load(x, cup__offset_of(x, row * weight->shape[1] + k)) *
               cup__load(weight, j * weight->stride[0] + k * weight->stride[1]);
    return (double)sum;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    int64_t n = dy->shape[dy->ndim - 1], k = x->shape[x->ndim - 1];
    int64_t rows = n ? dy->count / n : 0;
    for (int64_t j = 0; j < n; j++) {
        long double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += cup__load(dy, cup__offset_of(dy, r * n + j));
        cup__store(call->out[1], j, (double)sum);
        for (int64_t i = 0; i < k; i++) {
            long double product = 0;
            for (int64_t r = 0; r < rows; r++)
                product += cup__load(dy, cup__offset_of(dy, r * n + j)) *
                           cup__load(x, cup__offset_of(x, r * k + i));
            cup__store(call->out[0], j * k + i, (double)product);
        }
    }
    return CUP_OK;
}

/* dx, or the gradient before the activation that x came from. */
static void back_to_x(cup__grad *g, cup_tensor *dy)
{
    const cup__shape *x = &g->in_shape[0];
    cup_tensor *rows = x->ndim > 1 ? dy : cup__rows_of(g->c, dy);
    if (x->ndim == 1) {
        cup_tensor *dx = cup_matmul(g->c, rows, g->in[1], false, false);
        g->d_in[0] = cup_reshape(g->c, dx, 1, x->size);
    } else if (g->pre[0]) {
        g->d_pre[0] = g->past[0](g->c, rows, g->in[1], g->pre[0]);
    } else if (g->sum[0]) {
        cup_matmul_add(g->c, g->sum[0], rows, g->in[1], false, false);
    } else {
        g->d_in[0] = cup_matmul(g->c, rows, g->in[1], false, false);
    }
}

cup_status cup__linear_back(cup__grad *g, cup_tensor *dy, int bias)
{
    if (g->wanted[0])
        back_to_x(g, dy);
    if (g->wanted[bias] && !g->sum[1])
        return cup__linear_weight_grad(g->c, dy, g->in[0], &g->d_in[1], &g->d_in[bias]);
    cup_tensor *rows = cup__rows_of(g->c, dy), *x = cup__rows_of(g->c, g->in[0]);
    if (g->wanted[bias])
        g->d_in[bias] = cup_sum(g->c, rows, (int64_t[]){0}, 1, false);
    if (g->wanted[1] && g->sum[1])
        cup_matmul_add(g->c, g->sum[1], rows, x, true, false);
    else if (g->wanted[1])
        g->d_in[1] = cup_matmul(g->c, rows, x, true, false);
    return g->c->error.status;
}

/* Composed: the product of the flattened matrices into the first result, the sum into the other. */
static cup_status run(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *in[2];
    for (int i = 0; i < 2; i++)
        in[i] = cup__rows_of(c, call->in[i]);
    cup_tensor *product[] = {call->out[0]}, *sum[] = {call->out[1]};
    cup__matmul_attributes turned = {true, false};
    cup__sum_attributes rows = {{0}, 1, false};
    if (in[0] && in[1] && cup__op_call(c, &cup__rows[CUP__OP_matmul], in, 2, &turned, product))
        cup__op_call(c, &cup__rows[CUP__OP_sum], in, 1, &rows, sum);
    cup_tensor_free(in[0]);
    cup_tensor_free(in[1]);
    return c->error.status;
}

/* A tensor's dimensions but the last as one; it lies row-major. */
static cup_tensor flat(const cup_tensor *t)
{
    cup_tensor two = *t;
    int64_t length = t->shape[t->ndim - 1];
    two.ndim = 2;
    two.shape[0] = length ? t->count / length : 0;
    two.shape[1] = two.stride[0] = length;
    two.stride[1] = 1;
    return two;
}

static void make_product(const cup__call *call, cup__product *p)
{
    cup_tensor dy = flat(call->in[0]), x = flat(call->in[1]);
    cup__product_make(p, &dy, true, &x, false, &call->result[0]);
    p->summing = true;
}

static const char *refuses(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    if (!call->in[0]->contiguous || !call->in[1]->contiguous)
        return "an input does not lie row-major";
    cup__product p;
    make_product(call, &p);
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static cup_status run_wgmma(cup__call *call)
{
    cup__product p;
    make_product(call, &p);
    p.y.data = call->out[0]->data;
    p.a_sums = call->out[1]->data;
    return cup__product_wgmma(call, &p);
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *dy = call->in[0], *x = call->in[1];
    *flops = 2.0 * (double)dy->count * (double)x->shape[x->ndim - 1];
    *bytes = (double)((dy->count + x->count + call->out[0]->count) * cup_dtype_size(x->dtype));
}

static const cup__impl impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = run},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256),
     .strided = true, .refuses = refuses,
     .run = run_wgmma},
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = run},
    {0},
};

static const cup__sample samples[] = {
    {"0x5 0x3", NULL}, {"7 5", NULL},          {"1x1 1x1", NULL},
    {"9x5 9x3", NULL}, {"2x33x65 2x33x29", NULL}, {"300x70 300x130", NULL},
    {"520x136 520x264", NULL}, {"5x206x8 5x206x520", NULL},
    {"0x3x5 0x3x4", NULL}, {"3x0 3x5", NULL},     {"3x5 3x0", NULL},
    {"9x8 9x16", NULL},    {"60x130 60x64", NULL}, {"17x16 17x8", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"32768x3072 32768x768", NULL}, {"32768x768 32768x3072", NULL}, {NULL, NULL}};

/* Of dy^T x and the sum of dy over the rows. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    cup_tensor *d = g->d_out[0], *sum = g->d_out[1];
    cup_tensor *dy = cup__rows_of(c, g->in[0]), *x = cup__rows_of(c, g->in[1]), *back = NULL;
    if (g->wanted[0] && d)
        back = cup_matmul(c, x, d, false, true);
    if (g->wanted[0] && sum)
        back = back ? cup_add(c, back, sum) : cup_broadcast(c, sum, 2, dy ? dy->shape : NULL);
    if (back)
        g->d_in[0] = cup_reshape(c, back, g->in_shape[0].ndim, g->in_shape[0].size);
    if (g->wanted[1] && d)
        g->d_in[1] = cup_reshape(c, cup_matmul(c, dy, d, false, false), g->in_shape[1].ndim,
                                 g->in_shape[1].size);
    return c->error.status;
}

const cup__op cup__op_linear_weight_grad = {
    .infer = infer,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .tolerance = 32, /* sums of up to 1030 products */
    .cost = cost,
};
