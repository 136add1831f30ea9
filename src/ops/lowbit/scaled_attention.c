#include "ops/lowbit/scaled_attention.h"

#include <math.h>
#include <string.h>

#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/shape/copy.h"

typedef cup__scaled_attention_attributes attributes;

static cup_status check_codes(cup__call *call)
{
    for (int i = 0; i < CUP__CODES_SCALES; i++) {
        cup_dtype dtype = call->in[i]->dtype;
        if (dtype != CUP_F8E4M3 && dtype != CUP_F64)
            return cup__call_fail(call, CUP_DTYPE,
                                  "q, k and v must be f8e4m3; make them with cup_quantize");
        CUP_TRY(cup__need_same_dtype(call, 0, i));
        CUP_TRY(cup__need_ndim(call, i, 4, 4));
    }
    const int64_t *q = call->in[0]->shape, *k = call->in[1]->shape, *v = call->in[2]->shape;
    for (int i = 0; i < 4; i++)
        if (k[i] != v[i] || (i % 3 == 0 && q[i] != k[i]))
            return cup__call_fail(call, CUP_SHAPE,
                                  "k and v must have the same shape, and q their batch and size of "
                                  "a head");
    if (q[1] != k[1] && (k[1] == 0 || q[1] % k[1] != 0))
        return cup__call_fail(call, CUP_SHAPE,
                              "the %lld heads of q are no multiple of the %lld heads of k and v",
                              (long long)q[1], (long long)k[1]);
    return CUP_OK;
}

static cup_status check_scale(cup__call *call, int i)
{
    const cup_tensor *scale = call->in[CUP__CODES_SCALES + i];
    const int64_t *of = call->in[i]->shape;
    if (!scale)
        return CUP_OK;
    if (scale->dtype != CUP_F32 && scale->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE, "the scales, input %d, must be f32",
                              CUP__CODES_SCALES + i + 1);
    for (int d = 0; d < 2; d++)
        if (scale->ndim != 2 || (scale->shape[d] != 1 && scale->shape[d] != of[d]))
            return cup__call_fail(call, CUP_SHAPE,
                                  "the scales, input %d, must be [1 or %lld, 1 or %lld], one for "
                                  "each batch and head",
                                  CUP__CODES_SCALES + i + 1, (long long)of[0], (long long)of[1]);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    CUP_TRY(check_codes(call));
    for (int i = 0; i < CUP__CODES_SCALES; i++)
        CUP_TRY(check_scale(call, i));
    if (t->dtype != CUP_F32 && t->dtype != CUP_BF16 && t->dtype != CUP_F16)
        return cup__call_fail(call, CUP_DTYPE, "the result must be bf16, f16 or f32, not %s",
                              cup_dtype_name(t->dtype));
    CUP_TRY(cup__attention_check(call, t->scale, 0, call->in[0]->shape[3]));
    CUP_TRY(cup__attention_mask_check(call, t->window_left, t->window_right));
    call->result[0] = cup__shape_of(call->in[0]);
    call->result[0].dtype = t->dtype;
    call->order[0] = "0213";
    return CUP_OK;
}

static cup__heads heads_of(cup_tensor *t)
{
    cup__heads h = {.tensor = t};
    for (int i = 0; t && i < 4; i++)
        h.stride[i] = t->stride[i];
    return h;
}

cup__attention cup__scaled_attention_of(const cup__call *call)
{
    const attributes *t = call->attributes;
    cup_tensor *const *in = call->in;
    int64_t size = in[0]->shape[3], queries = in[0]->shape[2], keys = in[1]->shape[2];
    return (cup__attention){
        .c = call->c,
        .dtype = in[0]->dtype,
        .batch = in[0]->shape[0],
        .heads = in[0]->shape[1],
        .kv_heads = in[1]->shape[1],
        .queries = queries,
        .keys = keys,
        .key_size = size,
        .value_size = size,
        .size = size,
        .mask = cup__attention_mask_make(t->causal, false, t->window_left, t->window_right, NULL,
                                         NULL, queries, keys),
        .scale = t->scale != 0 ? t->scale : 1 / sqrt((double)size),
        .q = heads_of(in[0]),
        .k = heads_of(in[1]),
        .v = heads_of(in[2]),
        .o = heads_of(call->out[0]),
    };
}

/* In double, an element at a time. */
static cup_tensor *decoded(const cup__call *call, int i)
{
    const cup_tensor *t = call->in[i], *scale = call->in[CUP__CODES_SCALES + i];
    cup__shape shape = cup__shape_of(t);
    shape.dtype = CUP_F64;
    cup_tensor *made = cup__tensor_make(call->c, &shape, "decoded");
    int64_t across = t->shape[2] * t->shape[3], heads = t->shape[1];
    for (int64_t n = 0; made && n < t->count; n++) {
        int64_t head = n / across % heads, batch = n / across / heads;
        double by = 1;
        if (scale)
            by = cup__load(scale, (scale->shape[0] > 1 ? batch * scale->stride[0] : 0) +
                                      (scale->shape[1] > 1 ? head * scale->stride[1] : 0));
        cup__store(made, n, by * cup__load(t, cup__offset_of(t, n)));
    }
    return made;
}

static cup_status specification(cup__call *call)
{
    cup__attention a = cup__scaled_attention_of(call);
    cup__heads *to[] = {&a.q, &a.k, &a.v};
    cup_status status = CUP_OK;
    for (int i = 0; i < CUP__CODES_SCALES; i++)
        *to[i] = heads_of(decoded(call, i));
    status = call->c->error.status;
    if (status == CUP_OK)
        status = cup__attention_plain(&a);
    for (int i = 0; i < CUP__CODES_SCALES; i++)
        cup_tensor_free(to[i]->tensor);
    return status;
}

/* Codes times their scales, in f32. */
static cup_tensor *widened(cup_context *c, cup_tensor *codes, cup_tensor *scale)
{
    cup_tensor *wide = cup_cast(c, codes, CUP_F32);
    if (!scale || !wide)
        return wide;
    const int64_t shape[] = {scale->shape[0], scale->shape[1], 1, 1};
    cup_tensor *by = cup_reshape(c, scale, 4, shape), *scaled = by ? cup_mul(c, wide, by) : NULL;
    cup_tensor_free(by);
    cup_tensor_free(wide);
    return scaled;
}

static cup_status attend(cup__call *call, cup_tensor *const *wide)
{
    const attributes *t = call->attributes;
    cup_context *c = call->c;
    cup_tensor *o = cup_attention(c, wide[0], wide[1], wide[2],
                                  CUP_OPTIONS(cup_attention_options, .causal = t->causal,
                                              .scale = t->scale, .window_left = t->window_left,
                                              .window_right = t->window_right));
    if (!o)
        return c->error.status;
    cup_tensor *narrow = t->dtype == CUP_F32 ? o : cup_cast(c, o, t->dtype);
    if (narrow)
        cup__op_call(c, &cup__rows[CUP__OP_copy], &narrow, 1, NULL, call->out);
    if (narrow != o)
        cup_tensor_free(narrow);
    cup_tensor_free(o);
    return c->error.status;
}

/* The general way, on any device: attention in f32. */
static cup_status run_widened(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *wide[CUP__CODES_SCALES] = {NULL};
    bool was = c->recording, there = true;
    c->recording = false;
    for (int i = 0; i < CUP__CODES_SCALES && there; i++) {
        wide[i] = widened(c, call->in[i], call->in[CUP__CODES_SCALES + i]);
        there = wide[i] != NULL;
    }
    cup_status status = there ? attend(call, wide) : c->error.status;
    for (int i = 0; i < CUP__CODES_SCALES; i++)
        cup_tensor_free(wide[i]);
    c->recording = was;
    return status;
}

static const char *widened_refuses(const cup__call *call)
{
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i] && call->in[i]->dtype == CUP_F64)
            return "it does not take f64";
    return NULL;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    cup__attention a = cup__scaled_attention_of(call);
    double pairs = 0;
    for (int64_t query = 0; query < a.queries; query++) {
        int64_t seen = cup__attention_end(&a.mask, 0, query) -
                       cup__attention_first(&a.mask, 0, query);
        pairs += seen > 0 ? (double)seen : 0;
    }
    double heads = (double)(a.batch * a.size);
    double result = (double)(a.queries * a.heads * cup_dtype_size(call->out[0]->dtype));
    *bytes = heads * ((double)(a.queries * a.heads + 2 * a.keys * a.kv_heads) + result);
    *flops = 4 * pairs * (double)a.heads * heads;
}

/* What f32 attention is off, which may be 64 of its epsilons, and as much for scores of 100. */
#define WIDE 0x1p-16
/* A probability of 4 bits is off by up to 2^-4 of it, with a root mean square of 2^-5.2. Over n
 * keys results, which are means of values of any sign, become as small as n^-1/2 of these, and so
 * does what all roundings do to them: 2^-5.2 of the row, times the 5 deviations of one result in
 * millions, is 2^-3. The first rows under causality are means of few and larger than others. */
#define ROUNDED 0x1p-3

static const cup__impl impls[] = {
    {.name = "wgmma",
     .place = CUP__CUDA,
     CUP__THRESHOLDS(16, 64, 128, 256, 512),
     .strided = true,
     .refuses = cup__scaled_attention_wgmma_refuses,
     .run = cup__scaled_attention_wgmma,
     .slack = ROUNDED},
    {.name = "widened", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128), .strided = true,
     .refuses = widened_refuses, .run = run_widened, .slack = WIDE},
    {.name = "widened", .place = CUP__CPU, CUP__THRESHOLDS(32, 64), .strided = true,
     .refuses = widened_refuses, .run = run_widened, .slack = WIDE},
    {0},
};

#define WITH(...) &(const attributes){__VA_ARGS__}
static const attributes full = {.dtype = CUP_BF16}, causal = {.dtype = CUP_BF16, .causal = true},
                        f32 = {.dtype = CUP_F32}, f16 = {.dtype = CUP_F16, .causal = true};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1x1x1x1", &full},
    {"0x2x5x16 0x2x5x16 0x2x5x16", &full},
    {"1x2x0x16 1x2x3x16 1x2x3x16 1x2 1x2 1x1", &f32},
    {"1x2x3x16 1x2x0x16 1x2x0x16 1x1 1x2 1x2", &f32},
    {"2x2x5x8 2x2x5x8 2x2x5x8 2x2 1x2 2x1", &causal},
    {"1x2x7x5 1x1x3x5 1x1x3x5", &f16},
    {"1x1x1x16 1x1x1x16 1x1x1x16 1x1 1x1 1x1", &f32},
    {"1x4x64x64 1x2x64x64 1x2x64x64 1x4 1x2 1x2", &full},
    {"1x4x128x128 1x1x128x128 1x1x128x128", &f32},
    {"2x4x65x80 2x2x129x80 2x2x129x80 2x4 2x2 2x2", &f16},
    {"1x2x150x128 1x1x70x128 1x1x70x128 1x1 1x1 1x1", &causal},
    {"1x2x270x48 1x2x400x48 1x2x400x48 1x2 - 1x2", WITH(.dtype = CUP_F32, .scale = 0.4)},
    {"1x1x300x112 1x1x300x112 1x1x300x112", WITH(.dtype = CUP_F32, .causal = true)},
    {"1x2x140x64 1x1x200x64 1x1x200x64", WITH(.dtype = CUP_F32, .scale = 1)},
    {"1x6x33x128 1x2x641x128 1x2x641x128 1x6 1x2 1x2", &full},
    {"1x1x17x136 1x1x40x136 1x1x40x136 1x1 1x1 1x1", &causal},
    {"1x2x300x64 1x1x300x64 1x1x300x64 1x2 1x1 1x1",
     WITH(.dtype = CUP_F32, .causal = true, .window_left = 100)},
    {"1x2x300x128 1x1x140x128 1x1x140x128",
     WITH(.dtype = CUP_BF16, .window_left = 31, .window_right = 17)},
    {"1x1x130x32 1x1x700x32 1x1x700x32 - 1x1", WITH(.dtype = CUP_F16, .window_right = 9)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1x16x16384x128 1x16x16384x128 1x16x16384x128 1x16 1x16 1x16", &full},
    {"1x16x16384x128 1x16x16384x128 1x16x16384x128 1x16 1x16 1x16", &causal},
    {"4x16x4096x128 4x16x4096x128 4x16x4096x128 1x16 1x16 1x16", &full},
    {"16x16x1024x128 16x16x1024x128 16x16x1024x128 1x16 1x16 1x16", &full},
    {"16x16x1024x128 16x16x1024x128 16x16x1024x128 1x16 1x16 1x16", &causal},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64 1x12 1x12 1x12", &full},
    {"8x12x2048x64 8x12x2048x64 8x12x2048x64 1x12 1x12 1x12", &causal},
    {NULL, NULL}};

const cup__op cup__op_scaled_attention = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .strided_out = true,
    .slack_by_rows = true,
    .samples = samples,
    .bench = bench,
    .domain = {[CUP__CODES_SCALES] = {0.25, 1}, {0.25, 1}, {0.5, 2}},
    .in_dtypes = {CUP__DTYPE(F8E4M3), CUP__DTYPE(F8E4M3), CUP__DTYPE(F8E4M3), CUP__DTYPE(F32),
                  CUP__DTYPE(F32), CUP__DTYPE(F32)},
    .tolerance = 2,
    .cost = cost,
};
