/* Attention of the token that comes next, behind those whose keys and values are kept. */
#include <math.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/kv_cache/qkv_read.h"

#define MOST_POSITIONS (1 << 24)

static cup__rope_rule rule_of(const cup__qkv_attention_read_attributes *a)
{
    if (a->rope_dynamic)
        return (cup__rope_rule){.base = a->rope_base};
    return (cup__rope_rule){.base = a->rope_base,
                            .factor = a->rope_factor,
                            .low = a->rope_low,
                            .high = a->rope_high,
                            .amplitude = a->rope_amplitude,
                            .original = a->rope_original,
                            .yarn = a->rope_yarn,
                            .untruncated = a->rope_untruncated};
}

cup__qkv_read cup__qkv_read_of(const cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    cup_tensor *place = cup__attention_extra(call, CUP__QKV_READ_PLACE);
    cup__qkv_read r = {
        .qkv = call->in[CUP__QKV_READ_QKV],
        .keys = call->in[CUP__QKV_READ_KEYS],
        .values = call->in[CUP__QKV_READ_VALUES],
        .position = call->in[CUP__QKV_READ_POSITION],
        .place = place ? place : call->in[CUP__QKV_READ_POSITION],
        .o = call->out[0],
        .batch = call->in[CUP__QKV_READ_QKV]->shape[0],
        .heads = a->heads,
        .kv_heads = call->in[CUP__QKV_READ_KEYS]->shape[1],
        .size = call->in[CUP__QKV_READ_KEYS]->shape[3],
        .length = call->in[CUP__QKV_READ_KEYS]->shape[2],
        .rope = rule_of(a),
        .score = {.slopes = cup__attention_extra(call, CUP__QKV_READ_SLOPES),
                  .sinks = cup__attention_extra(call, CUP__QKV_READ_SINKS),
                  .soft_cap = a->soft_cap}};
    if (a->rope_dynamic && a->rope_original < r.length) {
        r.growth = a->rope_factor;
        r.original = a->rope_original;
    }
    r.window = a->window_left < r.length ? a->window_left : 0;
    r.scale = a->scale > 0 ? a->scale : 1 / sqrt((double)r.size);
    return r;
}

static cup_status check_attributes(cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    const cup_tensor *k = call->in[CUP__QKV_READ_KEYS];
    if (a->heads < 1 || k->shape[1] < 1 || a->heads % k->shape[1])
        return cup__call_fail(call, CUP_ARGUMENT,
                              "%d heads cannot share %lld of keys and values evenly", a->heads,
                              (long long)k->shape[1]);
    cup__rope_rule rule = rule_of(a);
    if (!(a->scale >= 0) || isinf(a->scale) || !cup__rope_rule_is_good(&rule))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "scale and what says of rope must be finite and not below 0, and "
                              "rope_high above rope_low; rope_yarn needs a rope_original, and a "
                              "rope_base above 1");
    if (a->rope_dynamic && (!(a->rope_factor > 0 && isfinite(a->rope_factor)) ||
                            a->rope_original < 1 || a->rope_original > MOST_POSITIONS ||
                            a->rope_base == 0 || k->shape[3] < 4 || a->rope_yarn ||
                            a->rope_amplitude > 0))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "rope_dynamic needs a rope_base, a rope_factor, a rope_original of "
                              "up to 2^24 and heads of at least 4, without yarn and amplitude");
    if (a->window_left < 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "a window counts the keys up to a token's own, with that one: from "
                              "1, or 0 for all, not %lld",
                              (long long)a->window_left);
    if (a->rope_base > 0 && k->shape[3] % 2)
        return cup__call_fail(call, CUP_SHAPE, "heads of %lld cannot be turned in pairs",
                              (long long)k->shape[3]);
    return CUP_OK;
}

/* A number for all texts, or one for each. */
static cup_status check_places(cup__call *call)
{
    const cup_tensor *position = call->in[CUP__QKV_READ_POSITION];
    const cup_tensor *place = cup__attention_extra(call, CUP__QKV_READ_PLACE);
    CUP_TRY(cup__need_index(call, CUP__QKV_READ_POSITION));
    if (position->count != 1 && position->count != call->in[CUP__QKV_READ_QKV]->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "position must be one number, or one a text");
    if (!place)
        return CUP_OK;
    CUP_TRY(cup__need_same_dtype(call, CUP__QKV_READ_POSITION, CUP__QKV_READ_PLACE));
    return place->count == position->count
               ? CUP_OK
               : cup__call_fail(call, CUP_SHAPE, "place must have as many numbers as position");
}

static cup_status infer(cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    const cup_tensor *x = call->in[CUP__QKV_READ_QKV], *k = call->in[CUP__QKV_READ_KEYS];
    CUP_TRY(cup__need_float(call, CUP__QKV_READ_QKV));
    CUP_TRY(cup__need_same_dtype(call, CUP__QKV_READ_KEYS, CUP__QKV_READ_QKV));
    CUP_TRY(cup__need_same_dtype(call, CUP__QKV_READ_VALUES, CUP__QKV_READ_QKV));
    CUP_TRY(cup__need_ndim(call, CUP__QKV_READ_QKV, 3, 3));
    CUP_TRY(cup__need_ndim(call, CUP__QKV_READ_KEYS, 4, 4));
    CUP_TRY(check_attributes(call));
    CUP_TRY(cup__attention_score_check(call, a->soft_cap, CUP__QKV_READ_SLOPES, a->heads));
    cup__shape keys = cup__shape_of(k), values = cup__shape_of(call->in[CUP__QKV_READ_VALUES]);
    int64_t width = (a->heads + 2 * k->shape[1]) * k->shape[3];
    if (!cup__shape_equal(&keys, &values) || k->shape[0] != x->shape[0] || x->shape[1] != 1 ||
        x->shape[2] != width || k->shape[2] > MOST_POSITIONS)
        return cup__call_fail(call, CUP_SHAPE,
                              "qkv must be [B,1,%lld], and keys and values [B,G,length,D] with a "
                              "length of up to 2^24",
                              (long long)width);
    CUP_TRY(check_places(call));
    call->result[0] = cup__shape_of(x);
    call->result[0].size[2] = a->heads * k->shape[3];
    return CUP_OK;
}

/* Where the token of a text comes, in the whole and among what is kept. */
typedef struct spot {
    int64_t position, place;
} spot;

/* The cosine and sine that pair i turns by at a position. Where the base is g^(pairs / (pairs - 1))
 * times as large as at the first positions the pair turns g^(-i / (pairs - 1)) times as fast, and
 * far on a frequency that is off in its last bit is off by as much as that times the position. */
static void turn_of(const cup__qkv_read *r, int64_t i, int64_t pairs, int64_t position,
                    double *cosine, double *sine)
{
    double usual = cup__rope_frequency(&r->rope, i, pairs);
    if (r->growth == 0 || position < r->original) {
        *cosine = cos((double)position * usual);
        *sine = sin((double)position * usual);
        return;
    }
    long double times = (long double)(position + 1) / (long double)r->original;
    long double g = r->growth * times - r->growth + 1;
    long double slower = powl(g, -(long double)i / (long double)(pairs - 1));
    long double angle = (long double)position * usual * slower;
    *cosine = (double)cosl(angle);
    *sine = (double)sinl(angle);
}

/* Element d of a head of qkv, turned where heads are. */
static double turned(const cup__qkv_read *r, int64_t batch, int64_t head, int64_t d,
                     int64_t position)
{
    int64_t row = batch * (r->heads + 2 * r->kv_heads) + head, pairs = r->size / 2;
    double x = cup__load(r->qkv, cup__offset_of(r->qkv, row * r->size + d));
    if (r->rope.base == 0 || head >= r->heads + r->kv_heads)
        return x;
    int64_t pair = d < pairs ? d : d - pairs, other = d < pairs ? d + pairs : pair;
    double cosine, sine;
    turn_of(r, pair, pairs, position, &cosine, &sine);
    double y = cup__load(r->qkv, cup__offset_of(r->qkv, row * r->size + other));
    return cup__rope_amplitude(&r->rope) * (x * cosine + (d < pairs ? -y : y) * sine);
}

static int64_t row_of(const cup__qkv_read *r, int64_t batch, int64_t head, int64_t key)
{
    return ((batch * r->kv_heads + head) * r->length + key) * r->size;
}

/* Of one head the scores of keys from `first` on; `scratch` has room for its query and its new key,
 * which is taken as it is, not as it was rounded. */
static void scores_of(const cup__qkv_read *r, int64_t batch, int64_t head, const spot *at,
                      int64_t first, double *scratch)
{
    int64_t kv = head / (r->heads / r->kv_heads), size = r->size;
    double *query = scratch, *fresh = query + size, *score = fresh + size, slope;
    for (int64_t d = 0; d < size; d++) {
        query[d] = turned(r, batch, head, d, at->position);
        fresh[d] = turned(r, batch, r->heads + kv, d, at->position);
    }
    for (int64_t k = first; k <= at->place; k++) {
        double dot = 0;
        for (int64_t d = 0; d < size; d++) {
            int64_t from = cup__offset_of(r->keys, row_of(r, batch, kv, k) + d);
            dot += query[d] * (k == at->place ? fresh[d] : cup__load(r->keys, from));
        }
        score[k] = cup__attention_changed(&r->score, r->scale * dot, head, at->place - k, &slope);
    }
}

/* Attention of one head; `scratch` has room for a score a key, too. */
static void attend(const cup__qkv_read *r, int64_t batch, int64_t head, const spot *at,
                   double *scratch)
{
    int64_t kv = head / (r->heads / r->kv_heads), size = r->size, end = at->place + 1;
    int64_t first = r->window && r->window < end ? end - r->window : 0;
    double *score = scratch + 2 * size, most = -INFINITY, sum = 0, fade = 1;
    scores_of(r, batch, head, at, first, scratch);
    for (int64_t k = first; k < end; k++)
        most = score[k] > most ? score[k] : most;
    for (int64_t k = first; k < end; k++)
        sum += score[k] = exp(score[k] - (most == -INFINITY ? 0 : most));
    if (r->score.sinks)
        fade = cup__attention_sink(cup__attention_of_head(r->score.sinks, head), &most, &sum);
    for (int64_t d = 0; d < size; d++) {
        double value = 0;
        for (int64_t k = first; k < end; k++)
            value += score[k] *
                     cup__load(r->values, cup__offset_of(r->values, row_of(r, batch, kv, k) + d));
        cup__store(r->o, cup__offset_of(r->o, (batch * r->heads + head) * size + d),
                   sum == 0 ? 0 : fade * value / sum);
    }
}

static void put(const cup__qkv_read *r, cup_tensor *to, int64_t batch, int64_t kv, const spot *at,
                int64_t first)
{
    for (int64_t d = 0; d < r->size; d++)
        cup__store(to, cup__offset_of(to, row_of(r, batch, kv, at->place) + d),
                   turned(r, batch, first + kv, d, at->position));
}

static int64_t number(const cup_tensor *t, int64_t batch)
{
    int64_t at = cup__offset_of(t, t->count > 1 ? batch : 0);
    return t->dtype == CUP_I64 ? ((const int64_t *)t->data)[at] : ((const int32_t *)t->data)[at];
}

static cup_status spot_of(cup__call *call, const cup__qkv_read *r, int64_t batch, spot *out)
{
    out->position = number(r->position, batch);
    out->place = number(r->place, batch);
    if (out->place >= 0 && out->place < r->length)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT,
                          "position %lld is not among the %lld that keys have room for",
                          (long long)out->place, (long long)r->length);
}

static cup_status specification(cup__call *call)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    spot at;
    for (int64_t b = 0; b < r.batch; b++)
        CUP_TRY(spot_of(call, &r, b, &at));
    double *scratch = cup__malloc((size_t)(2 * r.size + r.length) * sizeof *scratch);
    if (!scratch)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    for (int64_t b = 0; b < r.batch; b++) {
        spot_of(call, &r, b, &at);
        for (int64_t kv = 0; kv < r.kv_heads; kv++) {
            put(&r, r.keys, b, kv, &at, r.heads);
            put(&r, r.values, b, kv, &at, r.heads + r.kv_heads);
        }
        for (int64_t head = 0; head < r.heads; head++)
            attend(&r, b, head, &at, scratch);
    }
    cup__free(scratch);
    return CUP_OK;
}

static int64_t positions(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    bool is_place = i == CUP__QKV_READ_POSITION || i == CUP__QKV_READ_PLACE;
    return is_place ? in[CUP__QKV_READ_KEYS]->shape[2] : 0;
}

/* As many keys are read as there is room for, which a benchmark fills. */
static void cost(const cup__call *call, double *bytes, double *flops)
{
    cup__qkv_read r = cup__qkv_read_of(call);
    double numbers = (double)(r.batch * (r.window ? r.window : r.length) * r.size);
    *bytes = 2 * numbers * (double)(r.kv_heads * cup_dtype_size(r.qkv->dtype));
    *flops = 4 * numbers * (double)r.heads;
}

static const cup__impl impls[] = {
    {.name = "texts", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 64, 128),
     .refuses = cup__qkv_read_texts_refuses, .run = cup__qkv_read_texts},
    {.name = "lanes", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 256, 2048),
     .refuses = cup__qkv_read_lanes_refuses, .run = cup__qkv_read_lanes},
    {0}};
#define WITH(...) &(const cup__qkv_attention_read_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x6 1x1x1x2 1x1x1x2 1", WITH(.heads = 1)},
    {"0x1x6 0x1x4x2 0x1x4x2 1", WITH(.heads = 1)},
    {"2x1x24 2x1x9x6 2x1x9x6 2", WITH(.heads = 2, .rope_base = 10000)},
    {"1x1x384 1x2x70x64 1x2x70x64 1", WITH(.heads = 2)},
    {"3x1x512 3x1x257x64 3x1x257x64 3", WITH(.heads = 6, .scale = 0.1, .rope_base = 500)},
    {"1x1x384 1x1x300x128 1x1x300x128 ()", WITH(.heads = 1, .rope_base = 1e6)},
    {"2x1x240 2x1x33x80 2x1x33x80 2", WITH(.heads = 1)},
    {"1x1x1536 1x2x40x256 1x2x40x256 1", WITH(.heads = 2, .rope_base = 1e4)},
    {"2x1x240 2x1x33x80 2x1x33x80 2",
     WITH(.heads = 1, .rope_base = 5e5, .rope_factor = 8, .rope_original = 64)},
    {"2x1x240 2x1x70x80 2x1x70x80 2",
     WITH(.heads = 1, .rope_base = 1e4, .rope_factor = 4, .rope_original = 24, .rope_high = 2,
          .rope_yarn = true)},
    {"1x1x160 1x1x2500x32 1x1x2500x32 1", WITH(.heads = 3, .rope_base = 1e4)},
    {"67x1x384 67x2x150x64 67x2x150x64 67", WITH(.heads = 2)},
    {"100x1x768 100x3x70x64 100x3x70x64 1", WITH(.heads = 6, .rope_base = 1e4)},
    {"140x1x240 140x1x33x80 140x1x33x80 140", WITH(.heads = 1)},
    {"34x1x3072 34x4x100x128 34x4x100x128 34", WITH(.heads = 16, .rope_base = 5e5)},
    {"100x1x768 100x3x70x64 100x3x70x64 1",
     WITH(.heads = 6, .rope_base = 1e4, .rope_factor = 3, .rope_original = 40, .rope_low = 0.5,
          .rope_high = 2, .rope_yarn = true, .rope_untruncated = true, .rope_amplitude = 1.25)},
    {"2x1x24 2x1x9x6 2x1x9x6 2 - - 2", WITH(.heads = 2, .rope_base = 1e4, .window_left = 1)},
    {"1x1x384 1x2x70x64 1x2x70x64 1 2 2", WITH(.heads = 2, .soft_cap = 2, .window_left = 33)},
    {"1x1x768 1x1x2900x128 1x1x2900x128 1 - - 1",
     WITH(.heads = 4, .rope_base = 1e4, .window_left = 2500)},
    {"1x1x1120 1x2x6000x80 1x2x6000x80 1 10 10", WITH(.heads = 10, .soft_cap = 30)},
    {"67x1x384 67x2x150x64 67x2x150x64 67 2", WITH(.heads = 2, .window_left = 70)},
    {"34x1x3072 34x4x100x128 34x4x100x128 34 - 16 34",
     WITH(.heads = 16, .rope_base = 5e5, .window_left = 64)},
    {"140x1x240 140x1x33x80 140x1x33x80 1 1 1", WITH(.heads = 1, .soft_cap = 1)},
    {"2x1x240 2x1x70x80 2x1x70x80 2",
     WITH(.heads = 1, .rope_base = 1e4, .rope_factor = 3, .rope_original = 20,
          .rope_dynamic = true)},
    {"67x1x384 67x2x50x64 67x2x50x64 67",
     WITH(.heads = 2, .rope_base = 1e4, .rope_factor = 8, .rope_original = 9,
          .rope_dynamic = true)},
    {"5x1x384 5x2x3000x64 5x2x3000x64 5",
     WITH(.heads = 2, .rope_base = 1e6, .rope_factor = 2, .rope_original = 100,
          .rope_dynamic = true)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1x1x2304 1x12x1024x64 1x12x1024x64 1", WITH(.heads = 12)},
    {"64x1x2304 64x12x1024x64 64x12x1024x64 64", WITH(.heads = 12)},
    {"1x1x6144 1x8x8192x128 1x8x8192x128 1", WITH(.heads = 32, .rope_base = 5e5)},
    {"1x1x6144 1x8x6143x128 1x8x6143x128 1",
     WITH(.heads = 32, .rope_base = 1e4, .window_left = 4096)},
    {NULL, NULL}};

const cup__op cup__op_qkv_attention_read = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1u << 1 | 1u << 2,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {0, 64}, {0, 1}, {-2, 2}, {0, 64}},
    .indices = positions,
    .in_dtypes = {0, 0, 0, CUP__DTYPES_INDEX, CUP__NUMBERS, CUP__NUMBERS, CUP__DTYPES_INDEX},
    .tolerance = 32, /* as attention */
    .cost = cost,
};
