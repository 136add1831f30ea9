#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"
#include "ops/lowbit/scaled.h"

typedef cup__scaled_grouped_matmul_attributes attributes;

enum { X, WEIGHT, OFFSETS, X_SCALE, WEIGHT_SCALE };

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[X], *weight = call->in[WEIGHT];
    cup__scale_layout layout;
    bool scaled = call->in[X_SCALE] || call->in[WEIGHT_SCALE];
    CUP_TRY(cup__scaled_dtypes(call, t->dtype, scaled, NULL));
    CUP_TRY(cup__need_ndim(call, X, 2, 2));
    CUP_TRY(cup__need_ndim(call, WEIGHT, 3, 3));
    CUP_TRY(cup__need_offsets(call, OFFSETS));
    if (x->shape[1] != weight->shape[2])
        return cup__call_fail(call, CUP_SHAPE,
                              "x has %lld features and the matrices of weight take %lld",
                              (long long)x->shape[1], (long long)weight->shape[2]);
    if (call->in[OFFSETS]->shape[0] != weight->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "there are %lld offsets for %lld matrices",
                              (long long)call->in[OFFSETS]->shape[0], (long long)weight->shape[0]);
    CUP_TRY(cup__scale_layout_of(call, X, X_SCALE, &layout));
    CUP_TRY(cup__scale_layout_of_matrices(call, WEIGHT, WEIGHT_SCALE, &layout));
    call->result[0] =
        (cup__shape){.dtype = t->dtype, .ndim = 2, .size = {x->shape[0], weight->shape[1]}};
    return CUP_OK;
}

static double scale_of(const cup_tensor *scale, const cup__scale_layout *s, int64_t group,
                       int64_t row, int64_t k)
{
    return scale ? cup__load(scale, group * s->group + cup__scale_at(s, row, k)) : 1;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[X], *w = call->in[WEIGHT], *offsets = call->in[OFFSETS];
    cup__scale_layout xs, ws;
    CUP_TRY(cup__offsets_check(call, offsets, x->shape[0]));
    CUP_TRY(cup__scale_layout_of(call, X, X_SCALE, &xs));
    CUP_TRY(cup__scale_layout_of_matrices(call, WEIGHT, WEIGHT_SCALE, &ws));
    int64_t rows = x->shape[0], n = ws.rows, groups = w->shape[0], g = 0;
    for (int64_t i = 0; i < rows; i++) {
        while (g < groups && i >= cup__group_begin(offsets, g + 1, rows))
            g++;
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; g < groups && k < x->shape[1]; k++)
                sum += cup__load(x, i * x->stride[0] + k * x->stride[1]) *
                       scale_of(call->in[X_SCALE], &xs, 0, i, k) *
                       cup__load(w, g * w->stride[0] + j * w->stride[1] + k * w->stride[2]) *
                       scale_of(call->in[WEIGHT_SCALE], &ws, g, j, k);
            cup__store(call->out[0], i * n + j, sum);
        }
    }
    return CUP_OK;
}

void cup__scaled_grouped_product(const cup__call *call, cup__product *p, cup__scaling *s)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[X], *weight = call->in[WEIGHT], *y = call->out[0];
    cup__scale_layout xs, ws;
    cup__scale_layout_of((cup__call *)(uintptr_t)call, X, X_SCALE, &xs);
    cup__scale_layout_of_matrices((cup__call *)(uintptr_t)call, WEIGHT, WEIGHT_SCALE, &ws);
    *s =
        (cup__scaling){.b_dtype = weight->dtype, .y_dtype = t->dtype, .fast = t->fast_accumulation};
    cup__scaling_make(s, call->in[X_SCALE], &xs, call->in[WEIGHT_SCALE], &ws);
    *p = (cup__product){.dtype = x->dtype,
                        .y_dtype = t->dtype,
                        .factor = 1,
                        .m = x->shape[0],
                        .n = ws.rows,
                        .k = ws.columns,
                        .batch_ndim = 1,
                        .batch_count = weight->shape[0],
                        .groups = {.kind = PRODUCT_GROUPS_OF_ROWS},
                        .scaling = s};
    p->batch_size[0] = p->batch_count;
    p->a = (cup__matrix){.data = x->data, .row = p->k, .column = 1};
    p->b = (cup__matrix){.data = weight->data, .row = 1, .column = p->k, .batch = {p->k * p->n}};
    p->y = (cup__matrix){.data = y ? y->data : NULL, .row = p->n, .column = 1};
}

static const cup__impl impls[] = {
    {.name = "groups",
     .place = CUP__CPU,
     CUP__THRESHOLDS(16, 64, 128, 512),
     .refuses = cup__scaled_refuses,
     .run = cup__scaled_grouped_cpu},
    {.name = "wgmma",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(16, 64, 128, 192, 256),
     .refuses = cup__scaled_grouped_wgmma_refuses,
     .run = cup__scaled_grouped_wgmma,
     .slack = 0x1p-8},
    {.name = "mma",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 16, 32, 128),
     .refuses = cup__scaled_refuses,
     .run = cup__scaled_grouped_mma,
     .slack = 0x1p-11},
    {0},
};

static const attributes bf16 = {CUP_BF16, true}, exact = {CUP_BF16, false}, f32 = {CUP_F32, false};
static const cup__sample samples[] = {{"0x16 2x3x16 2", &bf16},
                                      {"3x0 2x4x0 2", &bf16},
                                      {"5x16 0x4x16 0", &bf16},
                                      {"7x3 2x5x3 2 () ()", &f32},
                                      {"33x48 3x24x48 3 33x1 3", &bf16},
                                      {"160x33 5x17x33 5 1x1 5x17x1", &f32},
                                      {"160x272 6x136x272 6 160x3 6x2x3", &bf16},
                                      {"150x144 4x264x144 4 150x1 4x264x1", &exact},
                                      {"100x400 12x72x400 12 100x4 12x72x4", &f32},
                                      {"170x528 3x200x528 3 170x5 3x2x5", &exact},
                                      {"7x16 2x0x16 2", &bf16},
                                      {"90x16 3x16x16 3 1x1 3", &bf16},
                                      {"90x64 3x130x64 3 90x1 3x130x1", &bf16},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"8192x4096 8x4096x4096 8 8192x1 8x4096x1", &bf16},
                                    {"8192x4096 8x4096x4096 8 8192x32 8x32x32", &bf16},
                                    {"4096x2048 64x1024x2048 64 4096x16 64x8x16", &bf16},
                                    {NULL, NULL}};

const cup__op cup__op_scaled_grouped_matmul = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .ascending = 1u << 2,
    .domain = {{0}, {0}, {0}, {0.5, 2}, {0.5, 2}},
    .in_dtypes = {CUP__DTYPES_CODE, CUP__DTYPES_CODE, CUP__DTYPES_INDEX, CUP__DTYPE(F32),
                  CUP__DTYPE(F32)},
    .tolerance = 16, /* as scaled_matmul */
    .cost = cup__scaled_cost,
};
