#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"

typedef cup__matmul_attributes attributes;

static cup_status check_inner(cup__call *call, bool transpose_a, bool transpose_b)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    const int64_t *as = a->shape + a->ndim - 2, *bs = b->shape + b->ndim - 2;
    int64_t k = as[!transpose_a], k_b = bs[transpose_b];
    if (k == k_b)
        return CUP_OK;
    const char *cure = k == bs[!transpose_b]      ? "; transpose b?"
                       : as[transpose_a] == k_b   ? "; transpose a?"
                                                  : "";
    return cup__call_fail(call, CUP_SHAPE, "inner sizes %lld and %lld differ%s", (long long)k,
                          (long long)k_b, cure);
}

/* The leading dimensions of the result, by NumPy's rule. */
static cup_status broadcast_batch(cup__call *call)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    cup__shape *y = &call->result[0];
    y->ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 0; i < y->ndim - 2; i++) {
        int at = i - (y->ndim - a->ndim), bt = i - (y->ndim - b->ndim);
        int64_t size_a = at < 0 ? 1 : a->shape[at], size_b = bt < 0 ? 1 : b->shape[bt];
        if (size_a != size_b && size_a != 1 && size_b != 1)
            return cup__call_fail(call, CUP_SHAPE,
                                  "batch sizes %lld and %lld do not broadcast; they must be equal "
                                  "or 1",
                                  (long long)size_a, (long long)size_b);
        y->size[i] = size_a == 1 ? size_b : size_a;
    }
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    for (int i = 0; i < 2; i++) {
        CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_ndim(call, i, 2, CUP_MAX_DIMS));
    }
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(check_inner(call, t->transpose_a, t->transpose_b));
    CUP_TRY(broadcast_batch(call));
    const cup_tensor *a = call->in[0], *b = call->in[1];
    cup__shape *y = &call->result[0];
    y->dtype = a->dtype;
    y->size[y->ndim - 2] = a->shape[a->ndim - 2 + t->transpose_a];
    y->size[y->ndim - 1] = b->shape[b->ndim - 1 - t->transpose_b];
    return CUP_OK;
}

cup_status cup__matmul_infer(cup__call *call, int first, bool transpose_a, bool transpose_b,
                             cup__shape *y)
{
    cup__call product = *call;
    attributes turned = {transpose_a, transpose_b};
    product.in = call->in + first;
    product.in_count = 2;
    product.attributes = &turned;
    CUP_TRY(infer(&product));
    *y = product.result[0];
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const attributes *turned = call->attributes;
    cup__product p;
    cup__product_make(&p, call->in[0], turned->transpose_a, call->in[1], turned->transpose_b,
                      &call->result[0]);
    for (int64_t t = 0; t < p.batch_count; t++) {
        int64_t a = cup__product_offset(&p, &p.a, t), b = cup__product_offset(&p, &p.b, t);
        int64_t y = cup__product_offset(&p, &p.y, t);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                long double sum = 0;
                for (int64_t k = 0; k < p.k; k++)
                    sum += cup__load(call->in[0], a + i * p.a.row + k * p.a.column) *
                           cup__load(call->in[1], b + k * p.b.row + j * p.b.column);
                cup__store(call->out[0], y + i * p.y.row + j, (double)sum);
            }
    }
    return CUP_OK;
}

/* With one b for a batch of a, the sum over the batch is part of the product: the rows of all
 * matrices of the batch are laid behind each other. */
static cup_tensor *grad_of_shared_b(cup__grad *g, bool transpose_b)
{
    cup_tensor *rows = cup__rows_of(g->c, g->in[0]);
    cup_tensor *dy = cup__rows_of(g->c, g->d_out[0]);
    return transpose_b ? cup_matmul(g->c, dy, rows, true, false)
                       : cup_matmul(g->c, rows, dy, true, false);
}

static cup_status gradient(cup__grad *g)
{
    const attributes *t = g->attributes;
    bool ta = t->transpose_a, tb = t->transpose_b;
    cup_tensor *a = g->in[0], *b = g->in[1], *dy = g->d_out[0];
    if (g->wanted[0])
        g->d_in[0] = cup__sum_to(g->c,
                                 ta ? cup_matmul(g->c, b, dy, tb, true)
                                    : cup_matmul(g->c, dy, b, false, !tb),
                                 &g->in_shape[0]);
    if (g->wanted[1] && !ta && g->in_shape[1].ndim == 2 && g->in_shape[0].ndim > 2)
        g->d_in[1] = grad_of_shared_b(g, tb);
    else if (g->wanted[1])
        g->d_in[1] = cup__sum_to(g->c,
                                 tb ? cup_matmul(g->c, dy, a, true, ta)
                                    : cup_matmul(g->c, a, dy, !ta, false),
                                 &g->in_shape[1]);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const attributes *t = call->attributes;
    const cup_tensor *a = call->in[0], *y = call->out[0];
    int64_t k = t->transpose_a ? a->shape[a->ndim - 2] : a->shape[a->ndim - 1];
    *flops = 2.0 * (double)y->count * (double)k;
    *bytes = (double)((a->count + call->in[1]->count + y->count) * cup_dtype_size(y->dtype));
}

static const attributes nn = {false, false}, nt = {false, true}, tn = {true, false},
                        tt = {true, true};
static const cup__sample samples[] = {
    {"0x5 5x3", &nn},       {"3x0 0x4", &nn},         {"3x5 0x5", &nt},
    {"1x1 1x1", &nn},       {"1x7 7x1", &nn},         {"7x1 1x5", &nn},
    {"5x3 3x9", &nn},       {"5x3 9x3", &nt},         {"3x5 3x9", &tn},
    {"3x5 9x3", &tt},       {"2x5x3 3x9", &nn},       {"2x3x5x4 2x1x4x6", &nn},
    {"3x1x4x5 2x6x5", &nt}, {"2x4x5 2x4x3", &tn},     {"65x33 33x129", &nn},
    {"129x65 257x65", &nt}, {"65x130 65x70", &tn},    {"1x300 520x300", &nt},
    {"130x520 520x66", &nn}, {"2x128x64 2x64x128", &nn}, {"16x264 40x264", &nt},
    {"3x1032 20x1032", &nt},    {"40x1032 70x1032", &nt},
    {"3x5x520 3x260x520", &nt}, {"9x1032 1032x264", &nn},   {"3x30x136 3x136x72", &nn},
    {"1x520 520x1304", &nn},
    /* Nothing to write, or to sum. */
    {"0x3x5 0x5x4", &nn},   {"0x3x5 0x4x5", &nt},     {"0x5x3 0x5x4", &tn},
    {"0x5x3 0x4x5", &tt},   {"0x3x8 0x8x16", &nn},    {"0x3x8 0x16x8", &nt},
    {"2x3x0 2x0x4", &nn},   {"2x0x5 5x3", &nn},       {"2x3x5 2x5x0", &nn},
    {"0x0 0x0", &nn},
    /* Narrower than any tile, and sides that are no multiples of 8. */
    {"8x8 8x16", &nn},      {"16x8 8x8", &nt},        {"16x3 16x8", &tn},
    {"60x64 130x64", &nt},  {"60x130 130x64", &nn},   {"60x130 60x64", &tn},
    {"24x10 12x10", &nt},   {"3x5x24 3x24x12", &nn},  {"3x17x20 3x20x36", &nn},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1024x1024 1024x1024", &nt}, {"2048x2048 2048x2048", &nt}, {"4096x4096 4096x4096", &nt},
    {"8192x8192 8192x8192", &nt}, {"4096x4096 4096x4096", &nn}, {"32768x768 3072x768", &nt},
    {"32768x3072 768x3072", &nt}, {"1x4096 4096x4096", &nt},    {"16x4096 4096x4096", &nt},
    {NULL, NULL}};

const cup__op cup__op_matmul = {
    .epilogue = &cup__epilogue_matmul,
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1),
    .words = cup__product_words,
    .impls = cup__product_impls,
    .samples = samples,
    .bench = bench,
    .by_rows = 1,
    .tolerance = 16, /* sums of up to 520 products, whose roundings add up as a random walk */
    .cost = cost,
};
