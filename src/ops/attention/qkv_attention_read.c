/* Attention of the token that comes next, behind those whose keys and values are kept. */
#include <math.h>

#include "base/divide.h"
#include "base/memory.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/attention/qkv_attention_read_call.cuh"
#include "ops/rope/rope.h"

#define MOST_POSITIONS (1 << 24)
#define WARPS 8
#define HEADS_MOST 4
#define ALONE 2048       /* keys that one block takes */
#define SHARE_LEAST 256
#define SHARES_MOST 64
#define TEXTS_SIZE_MOST 128
/* Of qkv_read_texts.cu. */
#define TEXTS_WARPS 4
#define TEXTS_BLOCKS 4  /* on a multiprocessor */
#define SLOT_BYTES 8192 /* of keys and values */
#define SLOTS_MOST 16
#define RESERVED 1024 /* of shared memory, by the driver for each block */

static cup__rope_rule rule_of(const cup__qkv_attention_read_attributes *a)
{
    return (cup__rope_rule){.base = a->rope_base,
                            .factor = a->rope_factor,
                            .low = a->rope_low,
                            .high = a->rope_high,
                            .amplitude = a->rope_amplitude,
                            .original = a->rope_original,
                            .yarn = a->rope_yarn,
                            .untruncated = a->rope_untruncated};
}

/* A call, with its defaults. */
typedef struct reading {
    cup_tensor *qkv, *keys, *values, *position, *o;
    int64_t batch, heads, kv_heads, size, length;
    double scale;
    cup__rope_rule rope; /* its base is 0 where nothing is turned */
} reading;

static reading reading_of(const cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    reading r = {.qkv = call->in[0],
                 .keys = call->in[1],
                 .values = call->in[2],
                 .position = call->in[3],
                 .o = call->out[0],
                 .batch = call->in[0]->shape[0],
                 .heads = a->heads,
                 .kv_heads = call->in[1]->shape[1],
                 .size = call->in[1]->shape[3],
                 .length = call->in[1]->shape[2],
                 .rope = rule_of(a)};
    r.scale = a->scale > 0 ? a->scale : 1 / sqrt((double)r.size);
    return r;
}

static cup_status check_attributes(cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    const cup_tensor *k = call->in[1];
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
    if (a->rope_base > 0 && k->shape[3] % 2)
        return cup__call_fail(call, CUP_SHAPE, "heads of %lld cannot be turned in pairs",
                              (long long)k->shape[3]);
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup__qkv_attention_read_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0], *k = call->in[1];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 1, 0));
    CUP_TRY(cup__need_same_dtype(call, 2, 0));
    CUP_TRY(cup__need_ndim(call, 0, 3, 3));
    CUP_TRY(cup__need_ndim(call, 1, 4, 4));
    CUP_TRY(cup__need_index(call, 3));
    CUP_TRY(check_attributes(call));
    cup__shape keys = cup__shape_of(k), values = cup__shape_of(call->in[2]);
    int64_t width = (a->heads + 2 * k->shape[1]) * k->shape[3];
    if (!cup__shape_equal(&keys, &values) || k->shape[0] != x->shape[0] || x->shape[1] != 1 ||
        x->shape[2] != width || k->shape[2] > MOST_POSITIONS)
        return cup__call_fail(call, CUP_SHAPE,
                              "qkv must be [B,1,%lld], and keys and values [B,G,length,D] with a "
                              "length of up to 2^24",
                              (long long)width);
    if (call->in[3]->count != 1 && call->in[3]->count != x->shape[0])
        return cup__call_fail(call, CUP_SHAPE, "position must be one number, or one a text");
    call->result[0] = cup__shape_of(x);
    call->result[0].size[2] = a->heads * k->shape[3];
    return CUP_OK;
}

/* Element d of a head of qkv, turned where heads are. */
static double turned(const reading *r, int64_t batch, int64_t head, int64_t d, int64_t position)
{
    int64_t row = batch * (r->heads + 2 * r->kv_heads) + head, pairs = r->size / 2;
    double x = cup__load(r->qkv, cup__offset_of(r->qkv, row * r->size + d));
    if (r->rope.base == 0 || head >= r->heads + r->kv_heads)
        return x;
    int64_t pair = d < pairs ? d : d - pairs, other = d < pairs ? d + pairs : pair;
    double angle = (double)position * cup__rope_frequency(&r->rope, pair, pairs);
    double y = cup__load(r->qkv, cup__offset_of(r->qkv, row * r->size + other));
    return cup__rope_amplitude(&r->rope) * (x * cos(angle) + (d < pairs ? -y : y) * sin(angle));
}

static int64_t place_of(const reading *r, int64_t batch, int64_t head, int64_t key)
{
    return ((batch * r->kv_heads + head) * r->length + key) * r->size;
}

/* Attention of one head; `scratch` has room for its query, its new key and a score a key. The new
 * key is taken as it is, not as it was rounded. */
static void attend(const reading *r, int64_t batch, int64_t head, int64_t position,
                   double *scratch)
{
    int64_t kv = head / (r->heads / r->kv_heads), size = r->size;
    double *query = scratch, *fresh = query + size, *score = fresh + size, most = -INFINITY;
    double sum = 0;
    for (int64_t d = 0; d < size; d++) {
        query[d] = turned(r, batch, head, d, position);
        fresh[d] = turned(r, batch, r->heads + kv, d, position);
    }
    for (int64_t k = 0; k <= position; k++) {
        double dot = 0;
        for (int64_t d = 0; d < size; d++) {
            int64_t at = cup__offset_of(r->keys, place_of(r, batch, kv, k) + d);
            dot += query[d] * (k == position ? fresh[d] : cup__load(r->keys, at));
        }
        score[k] = r->scale * dot;
        most = score[k] > most ? score[k] : most;
    }
    for (int64_t k = 0; k <= position; k++)
        sum += score[k] = exp(score[k] - (most == -INFINITY ? 0 : most));
    for (int64_t d = 0; d < size; d++) {
        double value = 0;
        for (int64_t k = 0; k <= position; k++)
            value += score[k] * cup__load(r->values, cup__offset_of(r->values,
                                                       place_of(r, batch, kv, k) + d));
        cup__store(r->o, cup__offset_of(r->o, (batch * r->heads + head) * size + d),
                   sum == 0 ? 0 : value / sum);
    }
}

static void put(const reading *r, cup_tensor *to, int64_t batch, int64_t kv, int64_t position,
                int64_t first)
{
    for (int64_t d = 0; d < r->size; d++)
        cup__store(to, cup__offset_of(to, place_of(r, batch, kv, position) + d),
                   turned(r, batch, first + kv, d, position));
}

static cup_status position_of(cup__call *call, const reading *r, int64_t batch, int64_t *out)
{
    int64_t at = cup__offset_of(r->position, r->position->count > 1 ? batch : 0);
    *out = r->position->dtype == CUP_I64 ? ((const int64_t *)r->position->data)[at]
                                         : ((const int32_t *)r->position->data)[at];
    if (*out >= 0 && *out < r->length)
        return CUP_OK;
    return cup__call_fail(call, CUP_ARGUMENT,
                          "position %lld is not among the %lld that keys have room for",
                          (long long)*out, (long long)r->length);
}

static cup_status specification(cup__call *call)
{
    reading r = reading_of(call);
    int64_t position;
    for (int64_t b = 0; b < r.batch; b++)
        CUP_TRY(position_of(call, &r, b, &position));
    double *scratch = cup__malloc((size_t)(2 * r.size + r.length) * sizeof *scratch);
    if (!scratch)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    for (int64_t b = 0; b < r.batch; b++) {
        position_of(call, &r, b, &position);
        for (int64_t kv = 0; kv < r.kv_heads; kv++) {
            put(&r, r.keys, b, kv, position, r.heads);
            put(&r, r.values, b, kv, position, r.heads + r.kv_heads);
        }
        for (int64_t head = 0; head < r.heads; head++)
            attend(&r, b, head, position, scratch);
    }
    cup__free(scratch);
    return CUP_OK;
}

/* Elements a lane holds: an access of 16 bytes, or more where 32 lanes are too few. */
static int64_t each_of(const reading *r)
{
    int64_t each = 16 / cup_dtype_size(r->qkv->dtype), least = power_from((r->size + 31) / 32);
    return each > least ? each : least;
}

static const char *refuses(const cup__call *call)
{
    reading r = reading_of(call);
    return r.size > 2 * READ_PAIRS ? "its heads have over 256 elements" : NULL;
}

static bool is_whole(const reading *r, int64_t each)
{
    return r->size % each == 0 && ((uintptr_t)r->keys->data | (uintptr_t)r->values->data) % 16 == 0;
}

static void fill(read_call *to, const reading *r)
{
    *to = (read_call){.qkv = r->qkv->data,
                      .position = r->position->data,
                      .keys = r->keys->data,
                      .values = r->values->data,
                      .o = r->o->data,
                      .heads = (int)r->heads,
                      .kv_heads = (int)r->kv_heads,
                      .size = (int)r->size,
                      .length = (int)r->length,
                      .positions = (int)r->position->count,
                      .scale = r->scale * M_LOG2E,
                      .amplitude = cup__rope_amplitude(&r->rope)};
    if (r->rope.base > 0)
        cup__rope_frequencies(&r->rope, r->size / 2, r->qkv->dtype == CUP_F64, to->frequency);
}

/* What kernels do to queries and keys: nothing, turn them, or multiply cosines and sines, too. */
static int turned_knob(const reading *r)
{
    if (!(r->rope.base > 0))
        return 0;
    return cup__rope_amplitude(&r->rope) == 1 ? 1 : 2;
}

#define AHEAD_BYTES (24 << 20) /* of all blocks, so that weights find a place in L2 beside them */

/* Into how many shares the keys there is room for are cut, so that the card has blocks enough. */
static void cut(read_call *to, int64_t blocks, int multiprocessors)
{
    int64_t wanted = 2 * (int64_t)multiprocessors / blocks, most = to->length / SHARE_LEAST;
    int64_t shares = to->length <= ALONE ? 1 : wanted < most ? wanted : most;
    shares = shares < 1 ? 1 : shares > SHARES_MOST ? SHARES_MOST : shares;
    to->share = (int)((to->length + shares - 1) / shares);
    to->shares = (int)((to->length + to->share - 1) / to->share);
    to->ahead = AHEAD_BYTES / 2 / (int)(blocks * to->shares);
}

static int64_t heads_of(const reading *r)
{
    int64_t heads = r->qkv->dtype == CUP_F64 ? 1 : power_from(r->heads / r->kv_heads);
    return heads < HEADS_MOST ? heads : HEADS_MOST;
}

/* Slots of the ring of qkv_read_texts.cu. */
static int64_t slots_of(const reading *r, int shared)
{
    int64_t each = each_of(r), size = power_from((r->size + each - 1) / each) * each;
    int64_t heads = heads_of(r);
    int64_t own = 4 * ((heads + 2) * size + TEXTS_WARPS * heads * (size + 2)) + 16 * SLOTS_MOST;
    int64_t slots = ((shared + RESERVED) / TEXTS_BLOCKS - RESERVED - own) / SLOT_BYTES;
    return slots < SLOTS_MOST ? slots : SLOTS_MOST;
}

static const char *refuses_texts(const cup__call *call)
{
    reading r = reading_of(call);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    if (facts->major < 9)
        return "it is for Hopper and later (sm_90)";
    if (r.qkv->dtype == CUP_F64)
        return "it does not take f64";
    if (r.size > TEXTS_SIZE_MOST || !is_whole(&r, each_of(&r)))
        return "its heads have over 128 elements, or not whole pieces of 16 bytes";
    if (r.heads > HEADS_MOST * r.kv_heads)
        return "over 4 heads share keys";
    if (r.batch * r.kv_heads < facts->multiprocessors || r.batch * r.kv_heads > 1 << 24)
        return "there are too few keys' heads of all texts for the card, or over 2^24";
    return slots_of(&r, facts->shared_per_block) < 2 ? "keys do not fit in shared memory" : NULL;
}

static cup_status run_texts(cup__call *call)
{
    reading r = reading_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int64_t pairs = r.batch * r.kv_heads, most = TEXTS_BLOCKS * (int64_t)facts->multiprocessors;
    int64_t slots = slots_of(&r, facts->shared_per_block);
    read_call argument;
    fill(&argument, &r);
    cup__grid grid = {.x = pairs,
                      .threads = 32 * TEXTS_WARPS + 32,
                      .shared = (int)(slots * SLOT_BYTES),
                      .dependent = true};
    argument.ahead = AHEAD_BYTES / 2 / (int)(pairs < most ? pairs : most);
    cup__knob knobs[] = {{"CUP_T", r.qkv->dtype},
                         {"CUP_ID", r.position->dtype},
                         {"EACH", each_of(&r)},
                         {"LANES", power_from((r.size + each_of(&r) - 1) / each_of(&r))},
                         {"HEADS", heads_of(&r)},
                         {"SLOTS", slots},
                         {"BLOCKS", TEXTS_BLOCKS},
                         {"TURNED", turned_knob(&r)}};
    const int count = (int)(sizeof knobs / sizeof *knobs);
    cup__kernel *kernel = cup__kernel_get(gpu, "qkv_read_texts.cu", "read_texts", knobs, count);
    if (!kernel)
        return call->c->error.status;
    CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(argument)));
    cup__launch_known(gpu);
    const cup_tensor *written[] = {r.keys, r.values, r.o};
    for (int i = 0; i < 3; i++)
        cup__launch_writes(gpu, written[i]->data,
                           written[i]->count * cup_dtype_size(written[i]->dtype));
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    reading r = reading_of(call);
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    int64_t group = r.heads / r.kv_heads, each = each_of(&r), heads = heads_of(&r);
    read_call argument;
    fill(&argument, &r);
    int64_t chunks = (group + heads - 1) / heads;
    cut(&argument, r.batch * r.kv_heads * chunks, cup__cuda_facts(gpu)->multiprocessors);
    cup__shape room = {r.qkv->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 1,
                       {r.batch * r.heads * argument.shares * (r.size + 2)}};
    cup_tensor *part =
        argument.shares > 1 ? cup__tensor_make(c, &room, "qkv_attention_read") : NULL;
    if (argument.shares > 1 && !part)
        return c->error.status;
    argument.part = part ? part->data : NULL;
    cup__knob knobs[] = {{"CUP_T", r.qkv->dtype},
                         {"CUP_ID", r.position->dtype},
                         {"EACH", each},
                         {"LANES", power_from((r.size + each - 1) / each)},
                         {"HEADS", heads},
                         {"WARPS", WARPS},
                         {"TURNED", turned_knob(&r)},
                         {"WHOLE", is_whole(&r, each)}};
    const int count = (int)(sizeof knobs / sizeof *knobs);
    cup__grid grid = {.x = r.batch * r.kv_heads,
                      .y = argument.shares,
                      .z = chunks,
                      .threads = 32 * WARPS,
                      .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, "qkv_attention_read.cu", "read_fwd", knobs, count);
    cup_status status =
        kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : c->error.status;
    if (status == CUP_OK && part) {
        grid = (cup__grid){
            .x = r.batch * r.heads, .threads = 32 * WARPS, .dependent = true};
        kernel = cup__kernel_get(gpu, "qkv_attention_read.cu", "read_join", knobs, count);
        status = kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : c->error.status;
    }
    cup_tensor_free(part);
    return status;
}

static int64_t positions(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    return i == 3 ? in[1]->shape[2] : 0;
}

/* As many keys are read as there is room for, which a benchmark fills. */
static void cost(const cup__call *call, double *bytes, double *flops)
{
    reading r = reading_of(call);
    double numbers = (double)(r.batch * r.length * r.size);
    *bytes = 2 * numbers * (double)(r.kv_heads * cup_dtype_size(r.qkv->dtype));
    *flops = 4 * numbers * (double)r.heads;
}

static const cup__impl impls[] = {
    {.name = "texts", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 64, 128),
     .refuses = refuses_texts, .run = run_texts},
    {.name = "lanes", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 256, 2048), .refuses = refuses,
     .run = run_cuda},
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
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1x1x2304 1x12x1024x64 1x12x1024x64 1", WITH(.heads = 12)},
    {"64x1x2304 64x12x1024x64 64x12x1024x64 64", WITH(.heads = 12)},
    {"1x1x6144 1x8x8192x128 1x8x8192x128 1", WITH(.heads = 32, .rope_base = 5e5)},
    {NULL, NULL}};

const cup__op cup__op_qkv_attention_read = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1u << 1 | 1u << 2,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {0, 64}},
    .indices = positions,
    .in_dtypes = {0, 0, 0, CUP__DTYPES_INDEX},
    .tolerance = 32, /* as attention */
    .cost = cost,
};
