/* Attention of new tokens to all that is kept of their sequences, themselves among it. */
#include <math.h>

#include "base/memory.h"
#include "dispatch/attributes.h"
#include "ops/attention/attention_score.h"
#include "ops/kv_cache/kv_cache.h"
#include "tensor/sums.h"

cup__kv_attention cup__kv_attention_of(const cup__call *call)
{
    const cup__kv_attention_attributes *a = call->attributes;
    cup_tensor *q = call->in[CUP__KV_Q];
    cup__kv_attention r = {
        .kv = cup__kv_of(call, CUP__KV_KEYS, CUP__KV_LENGTHS, q->shape[0], q->shape[2]),
        .q = q,
        .o = call->out[0],
        .sinks = CUP__KV_SINKS < call->in_count ? call->in[CUP__KV_SINKS] : NULL,
        .heads = q->shape[1],
        .window = a->window_left ? a->window_left : CUP__KV_POSITIONS,
        .scale = a->scale != 0 ? a->scale : 1 / sqrt((double)q->shape[3]),
        .soft_cap = a->soft_cap};
    return r;
}

static cup_status check_attributes(cup__call *call)
{
    const cup__kv_attention_attributes *a = call->attributes;
    if (!isfinite(a->scale))
        return cup__call_fail(call, CUP_ARGUMENT, "scale must be finite; 0 means 1/sqrt(size)");
    if (!(a->soft_cap >= 0 && isfinite(a->soft_cap)))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "a soft cap must be finite and above 0, or 0 for none, not %g",
                              a->soft_cap);
    if (a->window_left < 0 || a->window_left > CUP__KV_POSITIONS)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "a window counts the keys up to a token's own, with that one: from "
                              "1 to 2^30, or 0 for all, not %lld",
                              (long long)a->window_left);
    return CUP_OK;
}

static cup_status check_sinks(cup__call *call)
{
    const cup_tensor *q = call->in[CUP__KV_Q];
    const cup_tensor *t = CUP__KV_SINKS < call->in_count ? call->in[CUP__KV_SINKS] : NULL;
    cup_dtype dtype = q->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    if (t && (t->ndim != 1 || t->shape[0] != q->shape[1]))
        return cup__call_fail(call, CUP_SHAPE,
                              "sinks must have one number for each of the %lld heads of q",
                              (long long)q->shape[1]);
    return !t || t->dtype == dtype ? CUP_OK
                                   : cup__call_fail(call, CUP_DTYPE, "sinks must be in %s; cast "
                                                                     "them",
                                                    cup_dtype_name(dtype));
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *q = call->in[CUP__KV_Q], *keys = call->in[CUP__KV_KEYS];
    CUP_TRY(cup__need_float(call, CUP__KV_Q));
    CUP_TRY(cup__need_ndim(call, CUP__KV_Q, 4, 4));
    CUP_TRY(cup__kv_check(call, CUP__KV_KEYS, CUP__KV_LENGTHS, CUP__KV_Q));
    cup__kv_attention a = cup__kv_attention_of(call);
    if (!cup__kv_is_codes(&a.kv))
        CUP_TRY(cup__need_same_dtype(call, CUP__KV_Q, CUP__KV_KEYS));
    if (q->shape[3] != keys->shape[3])
        return cup__call_fail(call, CUP_SHAPE, "heads of q must have the size of kept keys");
    if (keys->shape[1] == 0 || q->shape[1] % keys->shape[1] != 0)
        return cup__call_fail(call, CUP_SHAPE,
                              "the %lld heads of q are no multiple of the %lld heads that are kept",
                              (long long)q->shape[1], (long long)keys->shape[1]);
    if (q->shape[2] > CUP__KV_POSITIONS / (q->shape[1] ? q->shape[1] : 1))
        return cup__call_fail(call, CUP_SHAPE, "there are over 2^30 new tokens of all heads");
    CUP_TRY(check_attributes(call));
    CUP_TRY(check_sinks(call));
    call->result[0] = cup__shape_of(q);
    call->result[0].size[3] = a.kv.value_size;
    call->order[0] = "0213";
    return CUP_OK;
}

static int64_t row_of(const cup_tensor *t, int64_t b, int64_t head, int64_t token)
{
    return b * t->stride[0] + head * t->stride[1] + token * t->stride[2];
}

/* One token of one head; `score` has room for one a position. */
static void attend(const cup__kv_attention *a, int64_t b, int64_t head, int64_t token,
                   double *score)
{
    const cup__kv *kv = &a->kv;
    int64_t group = head / (a->heads / kv->heads), q_at = row_of(a->q, b, head, token);
    bool is_there = token < cup__kv_count(kv, b);
    int64_t end = is_there ? cup__kv_length(kv, b) + token + 1 : 0;
    int64_t first = end > a->window ? end - a->window : 0;
    double most = -INFINITY, sum = 0, fade = 1;
    for (int64_t i = first; i < end; i++) {
        int64_t at = cup__kv_at(kv, kv->keys, b, group, i);
        double dot = cup__dot(a->q, q_at, a->q->stride[3], kv->keys, at, kv->keys->stride[3],
                              kv->size);
        score[i] = a->scale * dot * cup__kv_scale(kv, kv->key_scales, b, group, i);
        if (a->soft_cap > 0)
            score[i] = a->soft_cap * tanh(score[i] / a->soft_cap);
        most = score[i] > most ? score[i] : most;
    }
    for (int64_t i = first; i < end; i++)
        sum += score[i] = exp(score[i] - (most == -INFINITY ? 0 : most));
    if (a->sinks && is_there)
        fade = cup__attention_sink(cup__attention_of_head(a->sinks, head), &most, &sum);
    for (int64_t d = 0; d < kv->value_size; d++) {
        double value = 0;
        for (int64_t i = first; i < end; i++) {
            int64_t at = cup__kv_at(kv, kv->values, b, group, i) + d * kv->values->stride[3];
            value += score[i] * cup__kv_scale(kv, kv->value_scales, b, group, i) *
                     cup__load(kv->values, at);
        }
        cup__store(a->o, row_of(a->o, b, head, token) + d * a->o->stride[3],
                   sum == 0 ? 0 : value * fade / sum);
    }
}

static cup_status specification(cup__call *call)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    CUP_TRY(cup__kv_fits(call, &a.kv));
    double *score = cup__calloc((size_t)a.kv.room + 1, sizeof *score);
    if (!score)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    for (int64_t i = 0; i < a.kv.batch * a.heads * a.kv.tokens; i++)
        attend(&a, i / a.kv.tokens / a.heads, i / a.kv.tokens % a.heads, i % a.kv.tokens, score);
    cup__free(score);
    return CUP_OK;
}

/* Of lengths, so that there is room; of a table; of how many tokens are there. */
static int64_t places(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    const cup_tensor *keys = in[CUP__KV_KEYS];
    return i == CUP__KV_LENGTHS       ? keys->shape[2] - in[CUP__KV_Q]->shape[2] + 1
           : i == CUP__KV_LENGTHS + 1 ? keys->shape[0]
           : i == CUP__KV_LENGTHS + 4 ? in[CUP__KV_Q]->shape[2] + 1
                                      : 0;
}

/* As much is read as there is room for, which a benchmark fills. */
static void cost(const cup__call *call, double *bytes, double *flops)
{
    cup__kv_attention a = cup__kv_attention_of(call);
    const cup__kv *kv = &a.kv;
    double positions = (double)kv->batch * (double)(a.window < kv->room ? a.window : kv->room);
    double numbers = positions * (double)(kv->size + kv->value_size);
    *bytes = numbers * (double)(kv->heads * cup_dtype_size(kv->keys->dtype));
    *flops = 2 * numbers * (double)(a.heads * kv->tokens);
}

static const cup__impl impls[] = {
    {.name = "blocks", .place = CUP__CPU, CUP__THRESHOLDS(16, 64), .strided = true,
     .refuses = cup__refuses_f64, .run = cup__kv_attention_cpu},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 128), .strided = true,
     .tolerance = 6, .refuses = cup__kv_wgmma_refuses, .run = cup__kv_wgmma},
    {.name = "tiles", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64, 128), .strided = true,
     .tolerance = 6, .refuses = cup__kv_tiles_refuses, .run = cup__kv_tiles},
    {.name = "lanes", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 256), .strided = true,
     .refuses = cup__kv_lanes_refuses, .run = cup__kv_lanes},
    {0}};
#define WITH(...) &(const cup__kv_attention_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x1x2 1x1x1x2 1x1x1x2 1", WITH(0)},
    {"0x2x1x8 0x1x4x8 0x1x4x8 1", WITH(0)},
    {"2x2x0x8 2x2x9x8 2x2x9x8 2", WITH(0)},
    {"2x2x3x8 2x2x9x8 2x2x9x8 2", WITH(0)},
    {"2x3x5x6 2x3x33x6 2x3x33x10 2", WITH(.scale = 0.1, .soft_cap = 3)},
    {"1x2x1x64 1x1x700x64 1x1x700x64 1", WITH(0)},
    {"2x4x7x64 2x2x100x64 2x2x100x64 2 - - - 2", WITH(.window_left = 40)},
    {"3x3x1x128 3x1x80x128 3x1x80x128 3 - 3x1x80 3x1x80", WITH(.soft_cap = 20)},
    {"1x4x1x128 1x1x600x128 1x1x600x128 1 1x1 - - - 4", WITH(0)},
    {"1x2x20x32 1x1x60x32 1x1x60x32 1 1x1 1x1x60 1x1x60", WITH(0)},
    {"1x1x65x16 1x1x90x16 1x1x90x16 1 - - - - 1", WITH(.window_left = 70)},
    {"1x2x20x256 1x1x33x256 1x1x33x256 1", WITH(0)},
    {"2x6x1x64 2x2x1400x64 2x2x1400x64 2", WITH(.window_left = 900)},
    {"1x8x9x104 1x1x1100x104 1x1x1100x104 1 - - - 1 8", WITH(.soft_cap = 5)},
    {"3x2x4x64 8x1x32x64 8x1x32x64 3 3x8", WITH(0)},
    {"2x4x2x128 9x2x16x128 9x2x16x128 2 2x6 - - 2", WITH(.window_left = 50)},
    {"2x2x3x128 5x1x192x128 5x1x192x128 1 2x3", WITH(0)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"32x32x1x128 32x32x8192x128 32x32x8192x128 32", WITH(0)},
    {"32x32x64x128 32x32x8192x128 32x32x8192x128 32", WITH(0)},
    {"1x32x1x128 1x8x131072x128 1x8x131072x128 1", WITH(0)},
    {NULL, NULL}};

#define KEPT                                                                                       \
    (CUP__DTYPES_FLOAT | CUP__DTYPE(I8) | CUP__DTYPE(F8E4M3) | CUP__DTYPE(F8E5M2))
#define NUMBERS (CUP__DTYPE(F32) | CUP__DTYPE(F64))
const cup__op cup__op_kv_attention = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .strided_out = true,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {0, 64}, {0, 1}, {0.1, 1}, {0.1, 1}, {0, 4}, {-2, 2}},
    .indices = places,
    .in_dtypes = {CUP__DTYPES_FLOAT, KEPT, KEPT, CUP__DTYPES_INDEX, CUP__DTYPE(I32),
                  NUMBERS, NUMBERS, CUP__DTYPES_INDEX, NUMBERS},
    .tolerance = 32, /* as attention */
    .cost = cost,
};
