/* linear with weights of 8 or 4 bits. */
#include "base/memory.h"
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/lowbit/weight_only_wgmma.h"
#include "ops/lowbit/pack_weight.h"
#include "ops/elementwise/pointwise.h"
#include "ops/matmul/product.h"

#define ROWS_CPU 16 /* of x, beyond which the weights are better unpacked once */

static cup_tensor *bias_of(const cup__call *call)
{
    return call->in[call->op->kind == CUP__INT4 ? 4 : 3];
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *x = call->in[0], *bias = bias_of(call);
    cup__packed w;
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, call->op->kind == CUP__INT4 ? 4 : 3));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__packed_take(call, 1, &w));
    if (x->shape[x->ndim - 1] != w.k)
        return cup__call_fail(call, CUP_SHAPE, "x has %lld features and weight takes %lld",
                              (long long)x->shape[x->ndim - 1], (long long)w.k);
    if (bias && (bias->ndim != 1 || bias->shape[0] != w.n))
        return cup__call_fail(call, CUP_SHAPE, "bias must have the shape [%lld]", (long long)w.n);
    call->result[0] = cup__shape_of(x);
    call->result[0].size[x->ndim - 1] = w.n;
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *bias = bias_of(call);
    cup__packed w = cup__packed_of(call, 1);
    for (int64_t i = 0; i < call->out[0]->count; i++) {
        int64_t row = i / w.n, n = i % w.n;
        long double sum = bias ? cup__load(bias, n * bias->stride[0]) : 0;
        for (int64_t k = 0; k < w.k; k++)
            sum += cup__load(x, cup__offset_of(x, row * w.k + k)) * cup__packed_element(&w, n, k);
        cup__store(call->out[0], i, (double)sum);
    }
    return CUP_OK;
}

static cup_tensor *unpack(cup_context *c, const cup__packed *w, cup_dtype dtype)
{
    return w->bits == 8 ? cup_unpack_int8(c, w->weight, w->scale, dtype)
                        : cup_unpack_int4(c, w->weight, w->scale, w->zero, dtype);
}

/* A matrix [n,k] as the groups of its scales. */
static cup_tensor *in_groups(cup_context *c, cup_tensor *t, const cup__shape *scale)
{
    int64_t n = scale->size[0], groups = scale->size[1];
    return t ? cup_reshape(c, t, 3, (int64_t[]){n, groups, t->shape[1] / groups}) : NULL;
}

/* What the scales multiply. */
static cup_tensor *numbers_of(cup__grad *g, cup__packed w)
{
    w.scale = cup__full(g->c, &g->in_shape[2], 1);
    return unpack(g->c, &w, g->in_shape[0].dtype);
}

/* The weight; where it is differentiated once more, as a product with its scales. */
static cup_tensor *weight_of(cup__grad *g, const cup__packed *w)
{
    cup_context *c = g->c;
    const cup__shape *scale = &g->in_shape[2];
    if (!c->twice || !scale->size[1])
        return unpack(c, w, g->in_shape[0].dtype);
    cup_tensor *numbers = numbers_of(g, *w);
    cup_tensor *scales = cup_reshape(c, cup_cast(c, w->scale, g->in_shape[0].dtype), 3,
                                     (int64_t[]){scale->size[0], scale->size[1], 1});
    cup_tensor *all = cup_mul(c, in_groups(c, numbers, scale), scales);
    return numbers ? cup_reshape(c, all, 2, numbers->shape) : NULL;
}

/* The gradient of the scales: each multiplies the numbers of its group. */
static cup_tensor *scale_gradient(cup__grad *g, cup__packed w, cup_tensor *dy)
{
    const cup__shape *shape = &g->in_shape[2];
    cup_context *c = g->c;
    if (!shape->size[1])
        return cup__full(c, shape, 0);
    cup_tensor *dw = cup_matmul(c, cup__rows_of(c, dy), cup__rows_of(c, g->in[0]), true, false);
    cup_tensor *each = in_groups(c, cup_mul(c, dw, numbers_of(g, w)), shape);
    return cup_cast(c, cup_sum(c, each, (int64_t[]){2}, 1, false), shape->dtype);
}

static cup_status gradient(cup__grad *g)
{
    bool int4 = g->row->op->kind == CUP__INT4;
    cup__packed w = {.bits = int4 ? 4 : 8, .weight = g->in[1], .scale = g->in[2]};
    w.zero = int4 ? g->in[3] : NULL;
    int bias = int4 ? 4 : 3, ndim = g->in_shape[0].ndim;
    cup_tensor *dy = g->d_out[0];
    if (g->wanted[0]) {
        cup_tensor *rows = ndim > 1 ? dy : cup__rows_of(g->c, dy);
        cup_tensor *dx = cup_matmul(g->c, rows, weight_of(g, &w), false, false);
        g->d_in[0] = ndim > 1 ? dx : cup_reshape(g->c, dx, 1, g->in_shape[0].size);
    }
    if (g->wanted[2])
        g->d_in[2] = scale_gradient(g, w, dy);
    if (g->wanted[bias])
        g->d_in[bias] = cup__sum_to(g->c, dy, &g->in_shape[bias]);
    return CUP_OK;
}

/* The rows of weight that a piece of work multiplies, against all rows of x. */
typedef struct job {
    const cup__call *call;
    cup__packed w;
    const float *x; /* rows of x in f32 */
    int64_t rows;
    bool failed;
} job;

#define LANES 16

CUP__WIDE static float dot(const float *a, const float *b, int64_t count)
{
    float sum[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += a[i + l] * b[i + l];
    for (; i < count; i++)
        sum[0] += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        total += sum[l];
    return total;
}

static void multiply_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    cup_tensor *y = j->call->out[0], *bias = bias_of(j->call);
    float *row = cup__malloc((size_t)(j->w.k + 1) * sizeof *row);
    if (!row) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t n = begin; n < end; n++) {
        cup__packed_row(&j->w, n, 0, j->w.k, row);
        double plus = bias ? cup__load(bias, n) : 0;
        for (int64_t i = 0; i < j->rows; i++)
            cup__store(y, i * j->w.n + n, (double)dot(j->x + i * j->w.k, row, j->w.k) + plus);
    }
    cup__free(row);
}

static const char *rows_refuses(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    if (x->dtype == CUP_F64)
        return "it computes in single precision";
    int64_t k = x->shape[x->ndim - 1];
    return k && x->count / k > ROWS_CPU ? "it is for a handful of rows" : NULL;
}

static cup_status run_rows(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    job j = {.call = call, .w = cup__packed_of(call, 1)};
    j.rows = j.w.n ? call->out[0]->count / j.w.n : 0;
    float *copy = NULL;
    j.x = (const float *)x->data;
    if (x->dtype != CUP_F32) {
        copy = cup__malloc((size_t)(x->count + 1) * sizeof *copy);
        if (copy)
            cup__load_f32(copy, x->data, x->dtype, x->count);
        j.x = copy;
        j.failed = !copy;
    }
    if (!j.failed)
        cup__parallel_for(j.w.n, 16384 / (j.w.k + 1) + 1, multiply_rows, &j);
    cup__free(copy);
    return j.failed ? cup__call_fail(call, CUP_MEMORY, "out of host memory for a row") : CUP_OK;
}

/* The weights as floats, then linear. */
static cup_status run_unpacked(cup__call *call)
{
    cup_context *c = call->c;
    cup__packed w = cup__packed_of(call, 1);
    cup__shape shape = {.dtype = call->in[0]->dtype, .ndim = 2, .size = {w.n, w.k}};
    cup_tensor *floats = cup__tensor_make(c, &shape, "unpacked weights");
    cup_tensor *in[] = {w.weight, w.scale, w.zero}, *out[] = {floats};
    int op = w.bits == 8 ? CUP__OP_unpack_int8 : CUP__OP_unpack_int4;
    cup__unpack_int8_attributes attributes = {.dtype = shape.dtype};
    if (floats && cup__op_call(c, &cup__rows[op], in, w.bits == 8 ? 2 : 3, &attributes, out)) {
        cup_tensor *linear_in[] = {call->in[0], floats, bias_of(call)}, *y[] = {call->out[0]};
        cup__op_call(c, &cup__rows[CUP__OP_linear], linear_in, 3, NULL, y);
    }
    cup_tensor_free(floats);
    return c->error.status;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1], *y = call->out[0];
    *flops = 2.0 * (double)y->count * (double)x->shape[x->ndim - 1];
    *bytes = (double)((x->count + y->count) * cup_dtype_size(y->dtype) + weight->count +
                      call->in[2]->count * cup_dtype_size(call->in[2]->dtype));
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(16),
     .refuses = rows_refuses, .run = run_rows},
    {.name = "unpacked", .place = CUP__CPU, .run = run_unpacked},
    {.name = "stream",
     .place = CUP__CUDA,
     .refuses = cup__linear_stream_refuses,
     .run = cup__linear_stream_cuda},
    {.name = "wgmma",
     .place = CUP__CUDA,
     .refuses = cup__linear_codes_refuses,
     .run = cup__linear_codes_cuda},
    {.name = "mma",
     .place = CUP__CUDA,
     .refuses = cup__linear_packed_refuses,
     .run = cup__linear_packed_cuda},
    {.name = "plain",
     .place = CUP__CUDA,
     .refuses = cup__linear_packed_plain_refuses,
     .run = cup__linear_packed_plain},
    {.name = "unpacked", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64, 128), .run = run_unpacked},
    {0},
};

static const cup__sample int8_samples[] = {{"0x8 3x8 3x1 3", NULL},
                                           {"4x0 3x0 3x0 3", NULL},
                                           {"7 5x7 5x1", NULL},
                                           {"1x1 1x1 1x1 1", NULL},
                                           {"3x5 9x5 9x5 -", NULL},
                                           {"2x3x96 9x96 9x3 9", NULL},
                                           {"1x64 65x64 65x4 65", NULL},
                                           {"16x192 70x192 70x6", NULL},
                                           {"17x1024 130x1024 130x8 130", NULL},
                                           {"40x1024 130x1024 130x8 130", NULL},
                                           {"70x96 70x96 70x1 70", NULL},
                                           {"5x4128 33x4128 33x129", NULL},
                                           {"3x4128 70x4128 70x129", NULL},
                                           {"5x96 1000x96 1000x1", NULL},
                                           {"8x1040 40x1040 40x1 40", NULL},
                                           {"30x80 33x80 33x1", NULL},
                                           {"0x3x8 4x8 4x1 4", NULL},
                                           {"3x8 0x8 0x1 0", NULL},
                                           {NULL, NULL}};
static const cup__sample int4_samples[] = {{"0x8 3x4 3x1 3x1 3", NULL},
                                           {"4x0 3x0 3x0 - 3", NULL},
                                           {"6 5x3 5x1 -", NULL},
                                           {"1x2 1x1 1x1 1x1 1", NULL},
                                           {"3x10 9x5 9x5 9x5 -", NULL},
                                           {"2x3x96 9x48 9x3 9x3 9", NULL},
                                           {"1x64 65x32 65x2 - 65", NULL},
                                           {"16x192 70x96 70x6 70x6", NULL},
                                           {"17x1024 130x512 130x8 130x8 130", NULL},
                                           {"40x1024 130x512 130x8 130x8 130", NULL},
                                           {"70x96 70x48 70x1 - 70", NULL},
                                           {"5x4128 33x2064 33x129 33x129", NULL},
                                           {"9x4128 140x2064 140x43 - 140", NULL},
                                           {"5x160 1000x80 1000x1 1000x1", NULL},
                                           {"8x1056 40x528 40x1 - 40", NULL},
                                           {"30x96 33x48 33x1 33x1", NULL},
                                           {"0x3x8 4x4 4x1 - 4", NULL},
                                           {"3x8 0x4 0x1 0x1 0", NULL},
                                           {NULL, NULL}};
static const cup__sample int8_bench[] = {
    {"1x4096 4096x4096 4096x32", NULL},   {"16x4096 4096x4096 4096x32", NULL},
    {"64x4096 4096x4096 4096x32", NULL},  {"4096x4096 4096x4096 4096x32", NULL},
    {"1x4096 14336x4096 14336x32", NULL}, {NULL, NULL}};
static const cup__sample int4_bench[] = {
    {"1x4096 4096x2048 4096x32 4096x32", NULL},    {"16x4096 4096x2048 4096x32 4096x32", NULL},
    {"64x4096 4096x2048 4096x32 4096x32", NULL},   {"4096x4096 4096x2048 4096x32 4096x32", NULL},
    {"1x4096 14336x2048 14336x32 14336x32", NULL}, {NULL, NULL}};

const cup__op cup__op_linear_int8 = {
    .kind = CUP__INT8,
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2),
    .impls = impls,
    .samples = int8_samples,
    .bench = int8_bench,
    .domain = {{0}, {-128, 128}},
    .in_dtypes = {CUP__DTYPES_FLOAT, CUP__DTYPE(I8),
                  CUP__DTYPE(F32) | CUP__DTYPE(F64) | CUP__DTYPE(F16) | CUP__DTYPE(BF16),
                  CUP__DTYPES_FLOAT},
    .tolerance = 32, /* sums of up to 4128 products, and weights are rounded to 16 bits */
    .cost = cost,
};
const cup__op cup__op_linear_int4 = {
    .kind = CUP__INT4,
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_IN(3),
    .impls = impls,
    .samples = int4_samples,
    .bench = int4_bench,
    .domain = {{0}, {0, 256}, {0}, {0, 16}},
    .in_dtypes = {CUP__DTYPES_FLOAT, CUP__DTYPE(U8),
                  CUP__DTYPE(F32) | CUP__DTYPE(F64) | CUP__DTYPE(F16) | CUP__DTYPE(BF16),
                  CUP__DTYPE(U8), CUP__DTYPES_FLOAT},
    .tolerance = 32, /* as linear_int8 */
    .cost = cost,
};
