/* Matrix products with more in the same pass: a factor, a sum in place, the way back through a
 * gelu. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/activation/silu.h"
#include "ops/matmul/product_fused.h"

typedef cup__matmul_scaled_attributes scaled_attributes;
typedef cup__matmul_into_attributes into_attributes;

/* What matmul says of two of the inputs. */
static cup_status infer_product(cup__call *call, int first, bool transpose_a, bool transpose_b,
                                cup__shape *y)
{
    cup__call product = *call;
    cup__matmul_attributes turned = {transpose_a, transpose_b};
    product.in = call->in + first;
    product.in_count = 2;
    product.attributes = &turned;
    CUP_TRY(cup__op_matmul.infer(&product));
    *y = product.result[0];
    return CUP_OK;
}

static cup_status infer_scaled(cup__call *call)
{
    const scaled_attributes *t = call->attributes;
    return infer_product(call, 0, t->transpose_a, t->transpose_b, &call->result[0]);
}

static cup_status infer_into(cup__call *call)
{
    const into_attributes *t = call->attributes;
    const cup_tensor *y = call->in[0], *a = call->in[1];
    cup__shape product, given = cup__shape_of(y);
    CUP_TRY(infer_product(call, 1, t->transpose_a, t->transpose_b, &product));
    char text[CUP__SHAPE_TEXT];
    if (!cup__shape_equal(&product, &given))
        return cup__call_fail(call, CUP_SHAPE, "y must have the shape of the product, %s",
                              cup__shape_text(&product, text));
    if (y->dtype != a->dtype && (y->dtype != CUP_F32 || a->dtype == CUP_F64))
        return cup__call_fail(call, CUP_DTYPE, "y must have the dtype of a and b, or be f32");
    if (!y->contiguous)
        return cup__call_fail(call, CUP_SHAPE, "y is written in place and must be row-major");
    if (cup__tensor_overlap(y, a) || cup__tensor_overlap(y, call->in[2]))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "y shares memory with an input; give it memory of its own");
    return CUP_OK;
}

static cup_status infer_gelu_grad(cup__call *call)
{
    CUP_TRY(infer_product(call, 0, false, false, &call->result[0]));
    CUP_TRY(cup__need_same_dtype(call, 0, 2));
    cup__shape pre = cup__shape_of(call->in[2]);
    if (call->in[1]->ndim != 2 || !cup__shape_equal(&pre, &call->result[0]))
        return cup__call_fail(call, CUP_SHAPE, "pre must have the shape of dy weight");
    return CUP_OK;
}

static cup_status infer_swiglu_grad(cup__call *call)
{
    CUP_TRY(infer_product(call, 0, false, false, &call->result[0]));
    CUP_TRY(cup__need_same_dtype(call, 0, 2));
    cup__shape *y = &call->result[0], pre = cup__shape_of(call->in[2]);
    y->size[y->ndim - 1] *= 2;
    if (call->in[1]->ndim != 2 || !cup__shape_equal(&pre, y))
        return cup__call_fail(call, CUP_SHAPE, "pre must be twice as wide as dy weight");
    return CUP_OK;
}

static double dot(const cup__call *call, const cup__product *p, int first, int64_t batch,
                  int64_t i, int64_t j)
{
    int64_t a = cup__product_offset(p, &p->a, batch) + i * p->a.row;
    int64_t b = cup__product_offset(p, &p->b, batch) + j * p->b.column;
    double sum = 0;
    for (int64_t k = 0; k < p->k; k++)
        sum += cup__load(call->in[first], a + k * p->a.column) *
               cup__load(call->in[first + 1], b + k * p->b.row);
    return sum;
}

static double gelu_slope(double v)
{
    const double root = 0.79788456080286535588, cubic = 0.044715;
    double s = 1 / (1 + exp(-2 * root * (v + cubic * v * v * v)));
    return s + 2 * v * s * (1 - s) * root * (1 + 3 * cubic * v * v);
}

static cup_status specification(cup__call *call)
{
    int kind = call->op->kind, first = kind == CUP__MATMUL_INTO || kind == CUP__MATMUL_ADD;
    const scaled_attributes *scaled = call->attributes;
    const into_attributes *into = call->attributes;
    cup_tensor *y = first ? call->in[0] : call->out[0];
    cup__shape shape = cup__shape_of(y);
    cup__product p;
    cup__product_make(&p, call->in[first],
                      first ? into->transpose_a : scaled && scaled->transpose_a,
                      call->in[first + 1],
                      first ? into->transpose_b : scaled && scaled->transpose_b, &shape);
    for (int64_t t = 0; t < p.batch_count; t++)
        for (int64_t at = 0; at < p.m * p.n; at++) {
            int64_t i = at / p.n, j = at % p.n;
            int64_t to = cup__product_offset(&p, &p.y, t) + i * p.y.row + j;
            double v = dot(call, &p, first, t, i, j);
            if (kind == CUP__MATMUL_SCALED)
                v *= (double)scaled->factor;
            else if (kind == CUP__MATMUL_ADD)
                v += cup__load(y, to);
            else if (kind == CUP__MATMUL_GELU_GRAD)
                v *= gelu_slope(cup__load(call->in[2], cup__offset_of(call->in[2], to)));
            cup__store(y, to, v);
        }
    return CUP_OK;
}

static cup_status specification_swiglu_grad(cup__call *call)
{
    cup_tensor *y = call->out[0];
    const cup_tensor *pre = call->in[2];
    cup__shape half = call->result[0];
    half.size[half.ndim - 1] /= 2;
    cup__product p;
    cup__product_make(&p, call->in[0], false, call->in[1], false, &half);
    for (int64_t at = 0; at < p.batch_count * p.m * p.n; at++) {
        int64_t t = at / (p.m * p.n), i = at / p.n % p.m, j = at % p.n;
        int64_t row = at / p.n * 2 * p.n;
        double d = dot(call, &p, 0, t, i, j);
        double gate = cup__load(pre, cup__offset_of(pre, row + j));
        double up = cup__load(pre, cup__offset_of(pre, row + p.n + j));
        cup__store(y, row + j, d * up * cup__silu_slope(gate));
        cup__store(y, row + p.n + j, d * cup__silu(gate));
    }
    return CUP_OK;
}

static cup_status gradient_scaled(cup__grad *g)
{
    const scaled_attributes *t = g->attributes;
    bool ta = t->transpose_a, tb = t->transpose_b;
    cup_tensor *a = g->in[0], *b = g->in[1], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] =
            cup__sum_to(g->c,
                        ta ? cup_matmul_scaled(g->c, b, dy, tb, true, t->factor)
                           : cup_matmul_scaled(g->c, dy, b, false, !tb, t->factor),
                        &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] =
            cup__sum_to(g->c,
                        tb ? cup_matmul_scaled(g->c, dy, a, true, ta, t->factor)
                           : cup_matmul_scaled(g->c, a, dy, !ta, false, t->factor),
                        &g->in_shape[1]);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    int kind = call->op->kind, first = kind == CUP__MATMUL_INTO || kind == CUP__MATMUL_ADD;
    const scaled_attributes *scaled = call->attributes;
    const into_attributes *into = call->attributes;
    const cup_tensor *a = call->in[first], *b = call->in[first + 1];
    const cup_tensor *y = first ? call->in[0] : call->out[0];
    bool turned = first ? into->transpose_a : scaled && scaled->transpose_a;
    int64_t k = turned ? a->shape[a->ndim - 2] : a->shape[a->ndim - 1];
    int64_t passes = kind == CUP__MATMUL_ADD || kind >= CUP__MATMUL_GELU_GRAD ? 2 : 1;
    int64_t products = kind == CUP__MATMUL_SWIGLU_GRAD ? y->count / 2 : y->count;
    *flops = 2.0 * (double)products * (double)k;
    *bytes = (double)((a->count + b->count) * cup_dtype_size(a->dtype) +
                      passes * y->count * cup_dtype_size(y->dtype));
}

static const scaled_attributes nn_half = {false, false, 0.5f}, nt_twice = {false, true, -2.0f},
                               tn_third = {true, false, 0.3f};
static const into_attributes nn = {false, false}, nt = {false, true}, tn = {true, false};
static const cup__sample scaled_samples[] = {
    {"0x5 5x3", &nn_half},    {"3x0 0x4", &nn_half},   {"1x1 1x1", &nn_half},
    {"5x3 9x3", &nt_twice},   {"3x5 3x9", &tn_third},  {"2x5x4 2x4x3", &nn_half},
    {"65x72 72x136", &nn_half}, {"130x72 264x72", &nt_twice},
    {"0x3x5 0x5x4", &nn_half}, {"2x3x5 2x5x0", &nn_half}, {"2x3x0 2x0x4", &nn_half},
    {"9x8 8x16", &nn_half},    {"60x64 130x64", &nt_twice}, {NULL, NULL}};
static const cup__sample into_samples[] = {
    {"0x3 0x5 5x3", &nn},     {"3x4 3x0 0x4", &nn},    {"1x1 1x1 1x1", &nn},
    {"5x9 5x3 9x3", &nt},     {"5x9 3x5 3x9", &tn},    {"2x5x3 2x5x4 2x4x3", &nn},
    {"65x136 65x72 72x136", &nn}, {"130x264 130x72 264x72", &nt},
    {"136x72 520x136 520x72", &tn}, {"72x17 130x72 130x17", &tn},
    {"0x3x4 0x3x5 0x5x4", &nn}, {"0x3x4 0x3x5 0x4x5", &nt}, {"0x3x4 0x5x3 0x5x4", &tn},
    {"2x3x0 2x3x5 2x5x0", &nn}, {"2x3x4 2x3x0 2x0x4", &nn}, {"9x16 9x8 8x16", &nn},
    {"130x64 60x130 60x64", &tn}, {"3x17x36 3x17x20 3x20x36", &nn}, {NULL, NULL}};
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
static const cup__sample swiglu_bench[] = {{"8192x4096 4096x14336 8192x28672", NULL},
                                           {NULL, NULL}};
static const cup__sample into_bench[] = {
    {"3072x768 32768x3072 32768x768", &tn}, {"4096x4096 8192x4096 8192x4096", &tn}, {NULL, NULL}};
static const cup__sample scaled_bench[] = {{"4096x4096 4096x4096", &nt_twice}, {NULL, NULL}};
static const cup__sample gelu_bench[] = {{"32768x768 768x3072 32768x3072", NULL}, {NULL, NULL}};

const cup__op cup__op_matmul_scaled = {
    .kind = CUP__MATMUL_SCALED,
    .infer = infer_scaled,
    .specification = specification,
    .gradient = gradient_scaled,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .impls = cup__product_fused_impls,
    .samples = scaled_samples,
    .bench = scaled_bench,
    .tolerance = 8, /* sums of up to 72 products */
    .cost = cost,
};

const cup__op cup__op_matmul_into = {
    .kind = CUP__MATMUL_INTO,
    .infer = infer_into,
    .specification = specification,
    .impls = cup__product_fused_impls,
    .in_place = 1,
    .samples = into_samples,
    .bench = into_bench,
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64), CUP__DTYPES_FLOAT, CUP__DTYPES_FLOAT},
    .tolerance = 16, /* sums of up to 520 products */
    .cost = cost,
};

const cup__op cup__op_matmul_add = {
    .kind = CUP__MATMUL_ADD,
    .infer = infer_into,
    .specification = specification,
    .impls = cup__product_fused_impls,
    .in_place = 1,
    .samples = into_samples,
    .bench = into_bench,
    .tolerance = 16, /* sums of up to 520 products */
    .cost = cost,
};

const cup__op cup__op_matmul_gelu_grad = {
    .kind = CUP__MATMUL_GELU_GRAD,
    .infer = infer_gelu_grad,
    .specification = specification,
    .impls = cup__product_fused_impls,
    .samples = gelu_samples,
    .bench = gelu_bench,
    .tolerance = 16, /* sums of up to 136 products, rounded once more when composed */
    .cost = cost,
};

const cup__op cup__op_matmul_swiglu_grad = {
    .kind = CUP__MATMUL_SWIGLU_GRAD,
    .infer = infer_swiglu_grad,
    .specification = specification_swiglu_grad,
    .impls = cup__product_fused_impls,
    .samples = swiglu_samples,
    .bench = swiglu_bench,
    .tolerance = 32, /* as matmul_gelu_grad, times up */
    .cost = cost,
};
