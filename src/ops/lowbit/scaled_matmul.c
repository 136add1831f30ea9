#include "dispatch/attributes.h"
#include "ops/lowbit/scaled.h"

typedef cup__scaled_matmul_attributes attributes;

static bool is_code(const cup_tensor *t)
{
    return CUP__DTYPES_CODE >> t->dtype & 1;
}

static int64_t rows_of(const cup_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i < t->ndim - 1; i++)
        rows *= t->shape[i];
    return rows;
}

static int64_t blocks_of(int64_t count)
{
    return (count + PRODUCT_SCALE_DEPTH - 1) / PRODUCT_SCALE_DEPTH;
}

static cup_status check_scale(cup__call *call, int scale_i)
{
    cup_dtype dtype = call->in[scale_i]->dtype;
    if (dtype != CUP_F32 && dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE, "the scales, input %d, must be f32", scale_i + 1);
    return CUP_OK;
}

/* Fills the layout by the last two dimensions of scales, of which there are more than one. */
static cup_status lay_scales(cup__call *call, int scale_i, cup__scale_layout *out)
{
    const cup_tensor *scale = call->in[scale_i];
    int first = scale->ndim - 2;
    int64_t rows = scale->shape[first], columns = scale->shape[first + 1];
    bool by_row = rows == out->rows, by_block = rows == blocks_of(out->rows);
    if ((rows != 1 && !by_row && !by_block) || (columns != 1 && columns != blocks_of(out->columns)))
        return cup__call_fail(call, CUP_SHAPE,
                              "the scales, input %d, must be [%s1, %lld or %lld, 1 or %lld] for "
                              "%lld rows of %lld",
                              scale_i + 1, first ? "G, " : "", (long long)blocks_of(out->rows),
                              (long long)out->rows, (long long)blocks_of(out->columns),
                              (long long)out->rows, (long long)out->columns);
    out->line = rows == 1 ? 0 : scale->stride[first];
    out->shift = by_row || rows == 1 ? 0 : 7;
    out->k = columns == 1 ? 0 : scale->stride[first + 1];
    return CUP_OK;
}

cup_status cup__scale_layout_of(cup__call *call, int i, int scale_i, cup__scale_layout *out)
{
    const cup_tensor *t = call->in[i], *scale = call->in[scale_i];
    *out = (cup__scale_layout){.rows = rows_of(t), .columns = t->shape[t->ndim - 1]};
    if (!scale)
        return CUP_OK;
    CUP_TRY(check_scale(call, scale_i));
    if (scale->count == 1)
        return CUP_OK;
    CUP_TRY(cup__need_ndim(call, scale_i, 2, 2));
    return lay_scales(call, scale_i, out);
}

cup_status cup__scale_layout_of_matrices(cup__call *call, int i, int scale_i,
                                         cup__scale_layout *out)
{
    const cup_tensor *t = call->in[i], *scale = call->in[scale_i];
    *out = (cup__scale_layout){.rows = t->shape[1], .columns = t->shape[2]};
    if (!scale)
        return CUP_OK;
    CUP_TRY(check_scale(call, scale_i));
    if (scale->count == 1)
        return CUP_OK;
    if ((scale->ndim != 1 && scale->ndim != 3) || scale->shape[0] != t->shape[0])
        return cup__call_fail(call, CUP_SHAPE,
                              "the scales, input %d, must be one, [%lld] or [%lld,..,..]",
                              scale_i + 1, (long long)t->shape[0], (long long)t->shape[0]);
    out->group = scale->stride[0];
    return scale->ndim == 3 ? lay_scales(call, scale_i, out) : CUP_OK;
}

cup_status cup__scaled_dtypes(cup__call *call, cup_dtype dtype, bool scaled, const cup_tensor *bias)
{
    const cup_tensor *a = call->in[0], *b = call->in[1];
    bool whole = a->dtype == CUP_I8 && b->dtype == CUP_I8;
    bool reference = a->dtype == CUP_F64 && b->dtype == CUP_F64;
    if (!reference && (!is_code(a) || !is_code(b)))
        return cup__call_fail(call, CUP_DTYPE,
                              "a and b must be f8e4m3, f8e5m2 or i8; make them with cup_quantize");
    if (!whole && (a->dtype == CUP_I8 || b->dtype == CUP_I8))
        return cup__call_fail(call, CUP_DTYPE, "i8 is multiplied with i8 only");
    if (dtype == CUP_I32 && (!whole || scaled))
        return cup__call_fail(call, CUP_DTYPE, "i32 is for products of i8 without scales and bias");
    if (dtype != CUP_I32 && dtype != CUP_F32 && dtype != CUP_BF16 && dtype != CUP_F16)
        return cup__call_fail(call, CUP_DTYPE, "the result must be bf16, f16, f32 or i32, not %s",
                              cup_dtype_name(dtype));
    if (bias && bias->dtype != CUP_F64 && bias->dtype != dtype)
        return cup__call_fail(call, CUP_DTYPE, "bias must have the dtype of the result, %s",
                              cup_dtype_name(dtype));
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *a = call->in[0], *b = call->in[1], *bias = call->in[4];
    cup__scale_layout layout;
    CUP_TRY(cup__scaled_dtypes(call, t->dtype, call->in[2] || call->in[3] || bias, bias));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_ndim(call, 1, 2, 2));
    int64_t k = a->shape[a->ndim - 1];
    if (k != b->shape[1])
        return cup__call_fail(call, CUP_SHAPE, "a has rows of %lld and b [N,K] has rows of %lld",
                              (long long)k, (long long)b->shape[1]);
    CUP_TRY(cup__scale_layout_of(call, 0, 2, &layout));
    CUP_TRY(cup__scale_layout_of(call, 1, 3, &layout));
    if (bias && (bias->ndim != 1 || bias->shape[0] != b->shape[0]))
        return cup__call_fail(call, CUP_SHAPE, "bias must have the shape [%lld]",
                              (long long)b->shape[0]);
    call->result[0] = cup__shape_of(a);
    call->result[0].dtype = t->dtype;
    call->result[0].size[a->ndim - 1] = b->shape[0];
    return CUP_OK;
}

static double scale_of(const cup_tensor *scale, const cup__scale_layout *s, int64_t row, int64_t k)
{
    return scale ? cup__load(scale, cup__scale_at(s, row, k)) : 1;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *a = call->in[0], *b = call->in[1], *bias = call->in[4];
    cup__scale_layout as, bs;
    CUP_TRY(cup__scale_layout_of(call, 0, 2, &as));
    CUP_TRY(cup__scale_layout_of(call, 1, 3, &bs));
    int64_t k = as.columns, n = bs.rows;
    for (int64_t i = 0; i < as.rows; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = bias ? cup__load(bias, j * bias->stride[0]) : 0;
            for (int64_t l = 0; l < k; l++)
                sum += cup__load(a, cup__offset_of(a, i * k + l)) *
                       scale_of(call->in[2], &as, i, l) *
                       cup__load(b, j * b->stride[0] + l * b->stride[1]) *
                       scale_of(call->in[3], &bs, j, l);
            cup__store(call->out[0], i * n + j, sum);
        }
    return CUP_OK;
}

static product_scale scale_for(const cup_tensor *scale, const cup__scale_layout *s)
{
    return (product_scale){scale ? scale->data : NULL, s->line, s->k, s->group, s->shift};
}

void cup__scaling_make(cup__scaling *s, const cup_tensor *a_scale, const cup__scale_layout *a,
                       const cup_tensor *b_scale, const cup__scale_layout *b)
{
    s->a = scale_for(a_scale, a);
    s->b = scale_for(b_scale, b);
    s->kind = s->y_dtype == CUP_I32 ? PRODUCT_SCALE_NONE
              : a->k || b->k        ? PRODUCT_SCALE_BLOCKS
              : a->line || b->line  ? PRODUCT_SCALE_LINES
                                    : PRODUCT_SCALE_ONE;
}

void cup__scaled_product(const cup__call *call, cup__product *p, cup__scaling *s)
{
    const attributes *t = call->attributes;
    const cup_tensor *a = call->in[0], *b = call->in[1];
    cup__scale_layout as, bs;
    cup__scale_layout_of((cup__call *)(uintptr_t)call, 0, 2, &as);
    cup__scale_layout_of((cup__call *)(uintptr_t)call, 1, 3, &bs);
    *s = (cup__scaling){.b_dtype = b->dtype, .y_dtype = t->dtype, .fast = t->fast_accumulation};
    cup__scaling_make(s, call->in[2], &as, call->in[3], &bs);
    *p = (cup__product){.dtype = a->dtype,
                        .factor = 1,
                        .m = as.rows,
                        .n = bs.rows,
                        .k = as.columns,
                        .batch_count = 1,
                        .scaling = s};
    p->a = (cup__matrix){.data = a->contiguous ? a->data : NULL, .row = p->k, .column = 1};
    p->b = (cup__matrix){.data = b->contiguous ? b->data : NULL, .row = 1, .column = p->k};
    p->y =
        (cup__matrix){.data = call->out[0] ? call->out[0]->data : NULL, .row = p->n, .column = 1};
    p->bias = call->in[4] ? call->in[4]->data : NULL;
}

void cup__scaled_cost(const cup__call *call, double *bytes, double *flops)
{
    *bytes = 0;
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i])
            *bytes += (double)(call->in[i]->count * cup_dtype_size(call->in[i]->dtype));
    const cup_tensor *a = call->in[0], *y = call->out[0];
    *bytes += (double)(y->count * cup_dtype_size(y->dtype));
    *flops = 2.0 * (double)y->count * (double)a->shape[a->ndim - 1];
}

const char *cup__scaled_refuses(const cup__call *call)
{
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && call->in[i]->dtype == CUP_F64)
            return "it does not take f64";
    return NULL;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(16, 64, 128, 512),
     .refuses = cup__scaled_refuses, .run = cup__scaled_cpu},
    {.name = "wgmma",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(16, 64, 128, 192, 256, 512),
     .strided = true,
     .refuses = cup__scaled_wgmma_refuses,
     .run = cup__scaled_wgmma,
     .slack = 0x1p-8},
    {.name = "cublaslt",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(16, 128),
     .refuses = cup__scaled_cublaslt_refuses,
     .run = cup__scaled_cublaslt,
     .slack = 0x1p-8},
    {.name = "mma",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(4, 16, 32, 128),
     .refuses = cup__scaled_refuses,
     .run = cup__scaled_mma,
     .slack = 0x1p-11},
    {0},
};

static const attributes bf16 = {CUP_BF16, true}, exact = {CUP_BF16, false}, f32 = {CUP_F32, false},
                        f32_fast = {CUP_F32, true}, f16 = {CUP_F16, true};
static const cup__sample samples[] = {{"0x16 3x16", &bf16},
                                      {"3x0 4x0", &bf16},
                                      {"1x1 1x1 () ()", &f32},
                                      {"1x7 3x7 1x1 1x1", &f32},
                                      {"5x3 9x3 5x1 9x1", &f32_fast},
                                      {"2x5x33 9x33 1x1 9x1 9", &bf16},
                                      {"65x48 33x48 65x1 33x1", &f16},
                                      {"65x130 33x130 65x2 1x2", &f32},
                                      {"66x272 136x272 66x3 2x3", &bf16},
                                      {"66x400 70x400 66x4 70x4", &f32},
                                      {"131x512 24x512 1x1 1x1", &f32_fast},
                                      {"33x512 144x512 33x1 1x1 144", &exact},
                                      {"257x144 24x144", &f32},
                                      {"16x1040 136x1040 16x9 2x9 136", &bf16},
                                      {"2x3x1040 264x1040 6x1 264x1", &bf16},
                                      {"0x3x16 4x16 0x1 4x1", &bf16},
                                      {"3x16 0x16 1x1 1x1", &bf16},
                                      {"2x3x0 4x0 () () 4", &bf16},
                                      {"9x16 16x16 1x1 1x1 16", &bf16},
                                      {"60x64 130x64 60x1 130x1 130", &bf16},
                                      {"20x2064 24x2064 20x17 1x17 24", &bf16},
                                      {"9x2048 24x2048 9x1 24x1", &exact},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"4096x4096 4096x4096 1x1 1x1", &bf16},
                                    {"8192x8192 8192x8192 1x1 1x1", &bf16},
                                    {"8192x4096 14336x4096 1x1 1x1", &bf16},
                                    {"8192x8192 8192x8192 8192x1 8192x1", &bf16},
                                    {"4096x4096 4096x4096 4096x32 32x32", &bf16},
                                    {"8192x8192 8192x8192 8192x64 64x64", &bf16},
                                    {"64x7168 4096x7168 64x56 32x56", &bf16},
                                    {"16x4096 4096x4096 16x1 4096x1", &bf16},
                                    {"768x32768 768x32768 768x256 6x256", &bf16},
                                    {"3072x32768 768x32768 3072x256 6x256", &bf16},
                                    {NULL, NULL}};

const cup__op cup__op_scaled_matmul = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{0}, {0}, {0.5, 2}, {0.5, 2}},
    .in_dtypes = {CUP__DTYPES_CODE, CUP__DTYPES_CODE, CUP__DTYPE(F32), CUP__DTYPE(F32),
                  CUP__DTYPE(BF16)},
    .tolerance = 16, /* sums of up to 1040 products, whose roundings add up as a random walk */
    .cost = cup__scaled_cost,
};
