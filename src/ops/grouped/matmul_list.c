#include "ops/grouped/matmul_list.h"

#include "dispatch/attributes.h"

typedef cup__matmul_list_attributes attributes;

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    if (call->in_count % CUP__LIST_STEP)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "the list does not consist of three tensors each");
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i])
            return cup__call_fail(call, CUP_ARGUMENT, "input %d is NULL", i + 1);
        CUP_TRY(cup__need_float(call, i));
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        CUP_TRY(cup__need_ndim(call, i, 2, 2));
    }
    for (int i = 0; i < call->in_count; i += CUP__LIST_STEP) {
        const int64_t *a = call->in[i]->shape, *b = call->in[i + 1]->shape;
        const int64_t *y = call->in[i + 2]->shape;
        if (a[!t->transpose_a] != b[t->transpose_b] || y[0] != a[t->transpose_a] ||
            y[1] != b[!t->transpose_b])
            return cup__call_fail(call, CUP_SHAPE,
                                  "inputs %d to %d do not fit: [%lld,%lld] by [%lld,%lld] into "
                                  "[%lld,%lld]",
                                  i + 1, i + 3, (long long)a[0], (long long)a[1], (long long)b[0],
                                  (long long)b[1], (long long)y[0], (long long)y[1]);
    }
    return CUP_OK;
}

cup__product cup__list_product(const cup__call *call, int i)
{
    const attributes *t = call->attributes;
    cup_tensor *const *record = call->in + (ptrdiff_t)i * CUP__LIST_STEP;
    cup__shape shape = cup__shape_of(record[CUP__LIST_Y]);
    cup__product p;
    cup__product_make(&p, record[CUP__LIST_A], t->transpose_a, record[CUP__LIST_B], t->transpose_b,
                      &shape);
    p.y.data = record[CUP__LIST_Y]->data;
    return p;
}

static cup_status specification(cup__call *call)
{
    for (int r = 0; r < call->in_count / CUP__LIST_STEP; r++) {
        cup__product p = cup__list_product(call, r);
        cup_tensor *const *record = call->in + (ptrdiff_t)r * CUP__LIST_STEP;
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                long double sum = 0;
                for (int64_t k = 0; k < p.k; k++)
                    sum += cup__load(record[CUP__LIST_A], i * p.a.row + k * p.a.column) *
                           cup__load(record[CUP__LIST_B], k * p.b.row + j * p.b.column);
                cup__store(record[CUP__LIST_Y], i * p.y.row + j, (double)sum);
            }
    }
    return CUP_OK;
}

static cup_status run(cup__call *call)
{
    bool blas = !cup__product_blas_refuses(call);
    for (int i = 0; i < call->in_count / CUP__LIST_STEP; i++) {
        cup__product p = cup__list_product(call, i);
        if (p.m > 0 && p.n > 0)
            CUP_TRY(blas && p.k > 0 ? cup__product_blas(call, &p) : cup__product_blocked(call, &p));
    }
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    *bytes = *flops = 0;
    for (int i = 0; i < call->in_count; i++)
        *bytes += (double)(call->in[i]->count * cup_dtype_size(call->in[i]->dtype));
    for (int i = 0; i < call->in_count / CUP__LIST_STEP; i++) {
        cup__product p = cup__list_product(call, i);
        *flops += 2.0 * (double)p.m * (double)p.n * (double)p.k;
    }
}

static const cup__impl impls[] = {
    {.name = "products", .place = CUP__CPU, CUP__THRESHOLDS(128, 512), .run = run},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(8, 64, 128, 256),
     .refuses = cup__list_wgmma_refuses, .run = cup__list_wgmma},
    {.name = "mma", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128),
     .refuses = cup__list_mma_refuses, .run = cup__list_mma},
    {.name = "plain", .place = CUP__CUDA, CUP__THRESHOLDS(16, 128), .run = cup__list_plain},
    {0},
};

static const attributes nn = {false, false}, nt = {false, true}, tn = {true, false},
                        tt = {true, true};
static const cup__sample samples[] = {
    {"1x1 1x1 1x1", &nn},
    {"5x3 3x9 5x9 0x3 3x2 0x2 4x0 0x3 4x3", &nn},
    {"33x40 17x40 33x17 130x64 65x64 130x65 1x7 9x7 1x9", &nt},
    {"40x33 40x17 33x17 64x136 64x72 136x72", &tn},
    {"40x33 17x40 33x17 8x9 10x8 9x10", &tt},
    {"65x264 264x129 65x129 16x16 16x8 16x8", &nn},
    {"200x72 72x136 200x136 5x3 3x9 5x9 64x200 200x264 64x264", &nn},
    {"64x136 200x136 64x200 300x64 24x64 300x24", &nt},
    {"0x3 3x4 0x4 3x0 0x4 3x4 3x5 5x0 3x0", &nn},
    {"0x3 4x3 0x4", &nt},
    {"9x8 16x8 9x16 60x64 130x64 60x130", &nt},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1024x1024 1024x1024 1024x1024 512x4096 512x4096 512x512 2048x256 2048x256 2048x2048", &nt},
    {NULL, NULL}};

const cup__op cup__op_matmul_list = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1u << CUP__LIST_Y,
    .list_from = 0,
    .list_step = CUP__LIST_STEP,
    .samples = samples,
    .bench = bench,
    .tolerance = 16, /* as matmul */
    .cost = cost,
};
