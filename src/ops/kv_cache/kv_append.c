/* Keys and values of new tokens, behind those that are kept. */
#include <math.h>

#include "dispatch/attributes.h"
#include "ops/kv_cache/kv_cache.h"
#include "ops/lowbit/scaled.h"

#define WARPS 4 /* as in kv_append.cu */
#define LEAST_SCALE 0x1p-126f

enum { KEYS, VALUES, K, V, REST };

static cup__kv kv_of(const cup__call *call)
{
    return cup__kv_of(call, KEYS, REST, call->in[K]->shape[0], call->in[K]->shape[2]);
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *keys = call->in[KEYS], *values = call->in[VALUES];
    const cup_tensor *k = call->in[K], *v = call->in[V];
    CUP_TRY(cup__need_float(call, K));
    CUP_TRY(cup__need_same_dtype(call, K, V));
    CUP_TRY(cup__need_ndim(call, K, 4, 4));
    CUP_TRY(cup__need_ndim(call, V, 4, 4));
    CUP_TRY(cup__kv_check(call, KEYS, REST, K));
    for (int i = 0; i < 3; i++)
        if (k->shape[i] != v->shape[i])
            return cup__call_fail(call, CUP_SHAPE, "k and v must have the same shape, but for the "
                                                   "size of a head");
    if (k->shape[1] != keys->shape[1] || k->shape[3] != keys->shape[3] ||
        v->shape[3] != values->shape[3])
        return cup__call_fail(call, CUP_SHAPE,
                              "k and v must have as many heads as are kept, of the same size");
    if (k->shape[2] > CUP__KV_POSITIONS)
        return cup__call_fail(call, CUP_SHAPE, "there are over 2^30 new tokens");
    const cup_tensor *kept[] = {keys, values};
    for (int i = 0; i < 8; i++)
        if (kept[i % 2]->stride[i / 2] == 0 && kept[i % 2]->shape[i / 2] > 1)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "dimension %d of what is kept repeats one element, which cannot "
                                  "hold several; copy it first",
                                  i / 2);
    cup__kv kv = kv_of(call);
    return cup__kv_is_codes(&kv) ? CUP_OK : cup__need_same_dtype(call, KEYS, K);
}

/* One token of one head, [size] from `at` on. Codes are made in f32, as on a GPU. */
static float put(const cup_tensor *from, int64_t at, cup_tensor *to, int64_t to_at, bool scaled)
{
    bool whole = to->dtype == CUP_I8, codes = cup_dtype_size(to->dtype) == 1;
    float most = 0, scale = 1;
    for (int64_t d = 0; codes && scaled && d < to->shape[3]; d++)
        most = fmaxf(most, fabsf((float)cup__load(from, at + d * from->stride[3])));
    if (most > 0)
        scale = fmaxf(most / (float)cup__code_most(to->dtype), LEAST_SCALE);
    for (int64_t d = 0; d < to->shape[3]; d++) {
        double x = cup__load(from, at + d * from->stride[3]);
        if (codes)
            x = (double)((float)x * (1 / scale));
        if (whole)
            x = isnan(x) ? 0 : fmax(-127, fmin(127, nearbyint(x)));
        cup__store(to, to_at + d * to->stride[3], x);
    }
    return scale;
}

static cup_status specification(cup__call *call)
{
    cup__kv kv = kv_of(call);
    cup_tensor *kept[] = {kv.keys, kv.values}, *scales[] = {kv.key_scales, kv.value_scales};
    CUP_TRY(cup__kv_fits(call, &kv));
    for (int64_t i = 0; i < kv.batch * kv.heads * kv.tokens * 2; i++) {
        const cup_tensor *from = call->in[i % 2 ? V : K];
        int64_t token = i / 2 % kv.tokens, head = i / 2 / kv.tokens % kv.heads;
        int64_t b = i / 2 / kv.tokens / kv.heads, position = cup__kv_length(&kv, b) + token;
        if (token >= cup__kv_count(&kv, b))
            continue;
        int64_t at = b * from->stride[0] + head * from->stride[1] + token * from->stride[2];
        float scale = put(from, at, kept[i % 2],
                          cup__kv_at(&kv, kept[i % 2], b, head, position), kv.key_scales != NULL);
        if (kv.key_scales)
            cup__store(scales[i % 2], cup__kv_at(&kv, scales[i % 2], b, head, position),
                       (double)scale);
    }
    return CUP_OK;
}

static cup_status run_cuda(cup__call *call)
{
    cup__kv kv = kv_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[CUP__KV_KNOBS];
    int count = cup__kv_knobs(&kv, call->in[K]->dtype, knobs);
    if (cup__kv_is_codes(&kv))
        knobs[count++] = (cup__knob){"MOST", (int)cup__code_most(kv.keys->dtype)};
    kv_call argument;
    cup__kv_fill(&argument, &kv);
    argument.k = cup__kv_heads(call->in[K]);
    argument.v = cup__kv_heads(call->in[V]);
    int64_t rows = kv.batch * kv.heads * kv.tokens;
    cup__grid grid = {.x = (rows + WARPS - 1) / WARPS, .threads = 32 * WARPS, .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, "kv_append.cu", "kv_append", knobs, count);
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : call->c->error.status;
}

/* Of lengths, so that there is room; of a table. */
static int64_t places(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    int64_t page = in[KEYS]->shape[2];
    return i == REST ? page - in[K]->shape[2] + 1 : i == REST + 1 ? in[KEYS]->shape[0] : 0;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    cup__kv kv = kv_of(call);
    double numbers = (double)(kv.batch * kv.heads * kv.tokens * (kv.size + kv.value_size));
    *bytes = numbers * (double)(cup_dtype_size(kv.keys->dtype) +
                                cup_dtype_size(call->in[K]->dtype));
    *flops = numbers;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(4, 32), .strided = true, .run = run_cuda},
    {0}};
static const cup__sample samples[] = {
    {"1x1x1x1 1x1x1x1 1x1x1x1 1x1x1x1 ()", NULL},
    {"1x1x2x3 1x1x2x3 1x1x1x3 1x1x1x3 1", NULL},
    {"2x2x9x8 2x2x9x8 2x2x3x8 2x2x3x8 2", NULL},
    {"0x2x9x8 0x2x9x8 0x2x3x8 0x2x3x8 1", NULL},
    {"2x2x9x8 2x2x9x8 2x2x0x8 2x2x0x8 2", NULL},
    {"1x3x40x64 1x3x40x64 1x3x17x64 1x3x17x64 1 1x1 1x3x40 1x3x40", NULL},
    {"3x1x30x33 3x1x30x70 3x1x5x33 3x1x5x70 3 - 3x1x30 3x1x30", NULL},
    {"2x2x50x128 2x2x50x128 2x2x7x128 2x2x7x128 2 - - - 2", NULL},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"32x8x4096x128 32x8x4096x128 32x8x1x128 32x8x1x128 32", NULL},
    {"4x8x4096x128 4x8x4096x128 4x8x2048x128 4x8x2048x128 4", NULL},
    {NULL, NULL}};

#define KEPT                                                                                       \
    (CUP__DTYPES_FLOAT | CUP__DTYPE(I8) | CUP__DTYPE(F8E4M3) | CUP__DTYPE(F8E5M2))
#define SCALES (CUP__DTYPE(F32) | CUP__DTYPE(F64))
const cup__op cup__op_kv_append = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1u << KEYS | 1u << VALUES | 1u << (REST + 2) | 1u << (REST + 3),
    .rounds = true,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {-2, 2}, {0, 8}, {0, 1}, {0.1, 1}, {0.1, 1}, {0, 4}},
    .indices = places,
    .in_dtypes = {KEPT, KEPT, CUP__DTYPES_FLOAT, CUP__DTYPES_FLOAT, CUP__DTYPES_INDEX,
                  CUP__DTYPE(I32), SCALES, SCALES, CUP__DTYPES_INDEX},
    .cost = cost,
};
