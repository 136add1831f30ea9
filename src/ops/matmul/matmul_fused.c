/* Matrix products with more in the same pass: a factor, a result that is there already. */
#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"

typedef cup__matmul_scaled_attributes scaled_attributes;
typedef cup__matmul_into_attributes into_attributes;

static cup_status infer_scaled(cup__call *call)
{
    const scaled_attributes *t = call->attributes;
    return cup__matmul_infer(call, 0, t->transpose_a, t->transpose_b, &call->result[0]);
}

static cup_status infer_into(cup__call *call)
{
    const into_attributes *t = call->attributes;
    const cup_tensor *y = call->in[0], *a = call->in[1];
    cup__shape product, given = cup__shape_of(y);
    CUP_TRY(cup__matmul_infer(call, 1, t->transpose_a, t->transpose_b, &product));
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

static double dot(const cup__call *call, const cup__product *p, int first, int64_t batch,
                  int64_t i, int64_t j)
{
    int64_t a = cup__product_offset(p, &p->a, batch) + i * p->a.row;
    int64_t b = cup__product_offset(p, &p->b, batch) + j * p->b.column;
    long double sum = 0;
    for (int64_t k = 0; k < p->k; k++)
        sum += cup__load(call->in[first], a + k * p->a.column) *
               cup__load(call->in[first + 1], b + k * p->b.row);
    return (double)sum;
}

static cup_status specification(cup__call *call)
{
    const cup__epilogue *e = call->op->epilogue;
    const scaled_attributes *t = call->attributes; /* as into_attributes begin */
    cup_tensor *y = e->a ? call->in[0] : call->out[0];
    cup__shape shape = cup__shape_of(y);
    cup__product p;
    cup__product_make(&p, call->in[e->a], t->transpose_a, call->in[e->a + 1], t->transpose_b,
                      &shape);
    for (int64_t batch = 0; batch < p.batch_count; batch++)
        for (int64_t at = 0; at < p.m * p.n; at++) {
            int64_t i = at / p.n, j = at % p.n;
            int64_t to = cup__product_offset(&p, &p.y, batch) + i * p.y.row + j;
            double v = dot(call, &p, e->a, batch, i, j);
            if (e->scaled)
                v *= (double)t->factor;
            if (e->adding)
                v += cup__load(y, to);
            cup__store(y, to, v);
        }
    return CUP_OK;
}

static cup_status gradient_scaled(cup__grad *g)
{
    const scaled_attributes *t = g->attributes;
    bool ta = t->transpose_a, tb = t->transpose_b;
    cup_tensor *a = g->in[0], *b = g->in[1], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(
            g->c,
            ta ? cup_matmul_scaled(
                     g->c, b, dy, t->factor,
                     CUP_OPTIONS(cup_matmul_scaled_options, .transpose_a = tb, .transpose_b = true))
               : cup_matmul_scaled(g->c, dy, b, t->factor,
                                   CUP_OPTIONS(cup_matmul_scaled_options, .transpose_b = !tb)),
            &g->in_shape[0]);
    if (g->wanted[1])
        g->d_in[1] = cup__sum_to(
            g->c,
            tb ? cup_matmul_scaled(
                     g->c, dy, a, t->factor,
                     CUP_OPTIONS(cup_matmul_scaled_options, .transpose_a = true, .transpose_b = ta))
               : cup_matmul_scaled(g->c, a, dy, t->factor,
                                   CUP_OPTIONS(cup_matmul_scaled_options, .transpose_a = !ta)),
            &g->in_shape[1]);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup__epilogue *e = call->op->epilogue;
    const scaled_attributes *t = call->attributes;
    const cup_tensor *a = call->in[e->a], *b = call->in[e->a + 1];
    const cup_tensor *y = e->a ? call->in[0] : call->out[0];
    int64_t k = t->transpose_a ? a->shape[a->ndim - 2] : a->shape[a->ndim - 1];
    *flops = 2.0 * (double)y->count * (double)k;
    *bytes = (double)((a->count + b->count) * cup_dtype_size(a->dtype) +
                      (e->adding ? 2 : 1) * y->count * cup_dtype_size(y->dtype));
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
static const cup__sample into_bench[] = {
    {"3072x768 32768x3072 32768x768", &tn}, {"4096x4096 8192x4096 8192x4096", &tn}, {NULL, NULL}};
static const cup__sample scaled_bench[] = {{"4096x4096 4096x4096", &nt_twice}, {NULL, NULL}};

const cup__op cup__op_matmul_scaled = {
    .epilogue = &cup__epilogue_matmul_scaled,
    .infer = infer_scaled,
    .specification = specification,
    .gradient = gradient_scaled,
    .composed = gradient_scaled,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .words = cup__product_words,
    .impls = cup__product_fused_impls,
    .samples = scaled_samples,
    .bench = scaled_bench,
    .tolerance = 8, /* sums of up to 72 products */
    .cost = cost,
};

const cup__op cup__op_matmul_into = {
    .epilogue = &cup__epilogue_matmul_into,
    .infer = infer_into,
    .specification = specification,
    .words = cup__product_words,
    .impls = cup__product_fused_impls,
    .in_place = 1,
    .samples = into_samples,
    .bench = into_bench,
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64), CUP__DTYPES_FLOAT, CUP__DTYPES_FLOAT},
    .tolerance = 16, /* sums of up to 520 products */
    .cost = cost,
};

const cup__op cup__op_matmul_add = {
    .epilogue = &cup__epilogue_matmul_add,
    .infer = infer_into,
    .specification = specification,
    .words = cup__product_words,
    .impls = cup__product_fused_impls,
    .in_place = 1,
    .samples = into_samples,
    .bench = into_bench,
    .tolerance = 16, /* sums of up to 520 products */
    .cost = cost,
};
