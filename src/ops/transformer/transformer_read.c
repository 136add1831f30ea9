/* One row through a block of a transformer: what of it is not the kernel. */
#include "ops/transformer/transformer_read.h"

#include <math.h>
#include <string.h>

#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/rows.h"
#include "ops/rope/rope.h"
#include "ops/matmul/product_state.h"
#include "ops/transformer/transformer_read_call.cuh"
#include "tensor/context.h"

#define WIDTH_MOST 2048   /* of x; and columns that one lane multiplies by at once */
#define SIZE_MOST 256     /* of a head */
#define STAGE_MOST 16384
#define STAGE_ALONE 32768 /* of a block that has a multiprocessor for itself */
#define STAGES_LEAST 3
#define STAGES_MOST 16
#define CLUSTER_MOST 8
#define RESERVED 1024     /* of shared memory, by the driver for each block */
#define BOX_MOST 256      /* lines */

/* A weight as the kernel takes it: the columns and lines that a block has at most, how many lines
 * belong together, and how many a stage holds of each of those. */
typedef struct taking {
    cup__read_input weight;
    int64_t columns, lines, together, box;
} taking;

enum { QKV, OUT, UP, DOWN, WEIGHTS };

/* A call, and how it is cut. */
typedef struct reading {
    cup_tensor **in;
    const cup__transformer_read_attributes *a;
    int64_t width, heads, kv_heads, size, hidden, length;
    int64_t group;    /* heads of queries for one of keys */
    int64_t cluster, clusters;
    int64_t columns;  /* of the MLP that a cluster has at most */
    taking takings[WEIGHTS];
    int64_t stage_bytes, stages, beside; /* beside: shared memory that is not the ring's */
    int64_t extra;    /* floats of that whose number the kernel is told */
} reading;

static reading reading_of(cup_tensor **in, const void *attributes)
{
    const cup__transformer_read_attributes *a = attributes;
    const cup_tensor *keys = in[CUP__READ_KEYS];
    reading r = {.in = in,
                 .a = a,
                 .width = in[CUP__READ_X]->shape[2],
                 .heads = a->heads,
                 .kv_heads = keys->shape[1],
                 .size = keys->shape[3],
                 .length = keys->shape[2],
                 .hidden = in[CUP__READ_DOWN]->shape[1]};
    r.group = r.kv_heads > 0 ? r.heads / r.kv_heads : 0;
    return r;
}

static bool is_vector(const cup_tensor *t, int64_t size)
{
    return !t || (t->ndim == 1 && t->shape[0] == size);
}

static bool is_matrix(const cup_tensor *t, int64_t rows, int64_t columns)
{
    return t->ndim == 2 && t->shape[0] == rows && t->shape[1] == columns;
}

static bool shapes_agree(const reading *r)
{
    cup_tensor **in = r->in;
    int64_t rows = (r->heads + 2 * r->kv_heads) * r->size;
    int64_t up = r->hidden * (1 + r->a->gated);
    return is_vector(in[CUP__READ_NORM1], r->width) &&
           is_vector(in[CUP__READ_NORM1_BIAS], r->width) &&
           is_matrix(in[CUP__READ_QKV], rows, r->width) &&
           is_vector(in[CUP__READ_QKV_BIAS], rows) &&
           is_matrix(in[CUP__READ_OUT], r->width, r->heads * r->size) &&
           is_vector(in[CUP__READ_OUT_BIAS], r->width) &&
           is_vector(in[CUP__READ_NORM2], r->width) &&
           is_vector(in[CUP__READ_NORM2_BIAS], r->width) &&
           is_matrix(in[CUP__READ_UP], up, r->width) && is_vector(in[CUP__READ_UP_BIAS], up) &&
           is_matrix(in[CUP__READ_DOWN], r->width, r->hidden) &&
           is_vector(in[CUP__READ_DOWN_BIAS], r->width);
}

static cup_status infer(cup__call *call)
{
    const cup__transformer_read_attributes *a = call->attributes;
    CUP_TRY(cup__need_float(call, 0));
    for (int i = 1; i < CUP__READ_INPUTS; i++)
        if (call->in[i] && i != CUP__READ_POSITION)
            CUP_TRY(cup__need_same_dtype(call, i, 0));
    CUP_TRY(cup__need_index(call, CUP__READ_POSITION));
    CUP_TRY(cup__need_ndim(call, CUP__READ_X, 3, 3));
    CUP_TRY(cup__need_ndim(call, CUP__READ_KEYS, 4, 4));
    CUP_TRY(cup__need_ndim(call, CUP__READ_DOWN, 2, 2));
    CUP_TRY(cup__need_eps(call, a->eps));
    reading r = reading_of(call->in, a);
    cup__shape x = cup__shape_of(call->in[CUP__READ_X]), keys, values;
    keys = cup__shape_of(call->in[CUP__READ_KEYS]);
    values = cup__shape_of(call->in[CUP__READ_VALUES]);
    if (r.kv_heads < 1 || a->heads < 1 || a->heads % r.kv_heads || !(a->rope_base >= 0) ||
        isinf(a->rope_base) || (a->rope_base > 0 && r.size % 2))
        return cup__call_fail(call, CUP_ARGUMENT, "%d heads cannot share %lld of keys evenly",
                              a->heads, (long long)r.kv_heads);
    if (x.size[0] != 1 || x.size[1] != 1 || keys.size[0] != 1 || r.width < 1 || r.hidden < 1 ||
        call->in[CUP__READ_POSITION]->count != 1 || !cup__shape_equal(&keys, &values) ||
        !shapes_agree(&r))
        return cup__call_fail(call, CUP_SHAPE, "shapes of weights and keys must fit x [1,1,%lld]",
                              (long long)r.width);
    if (call->in[CUP__READ_DELTA]) {
        cup__shape delta = cup__shape_of(call->in[CUP__READ_DELTA]);
        if (!cup__shape_equal(&x, &delta))
            return cup__call_fail(call, CUP_SHAPE, "delta must have the shape of x");
    }
    call->result[0] = call->result[1] = x;
    return CUP_OK;
}

/* The greatest cluster that shares all evenly. */
static int64_t cluster_of(const reading *r, const cup__gpu_facts *facts)
{
    int64_t cluster = CLUSTER_MOST;
    while (r->width % cluster || (r->group + 2) * r->size % cluster ||
           cluster > facts->multiprocessors)
        cluster /= 2;
    return cluster;
}

static int64_t beside_of(const reading *r)
{
    int64_t part = r->group * (r->size + 2), lines = (r->group + 2) * r->size;
    int64_t own = r->width / r->cluster, up = divide_up(r->columns, r->cluster);
    int64_t products = own > lines / r->cluster ? own : lines / r->cluster;
    if (up * (1 + r->a->gated) > products)
        products = up * (1 + r->a->gated);
    int64_t floats = 5 * r->width + lines + (r->cluster + LAYER_WARPS) * part +
                     r->group * r->size + 2 * own + lines / r->cluster +
                     LAYER_WARPS * (products + r->group);
    return divide_up(4 * floats + 16 * STAGES_MOST + 256, 16) * 16;
}

static int64_t stage_of(const taking *t, int64_t lines)
{
    return t->together * LAYER_PIECES(t->columns) * LAYER_BOX(t->columns, lines);
}

/* Stages of as many lines as fit, all with about as many. */
static void choose_boxes(reading *r, int64_t stage_most)
{
    const taking all[WEIGHTS] = {
        [QKV] = {CUP__READ_QKV, r->width, r->size / r->cluster, 1, 0},
        [OUT] = {CUP__READ_OUT, r->group * r->size, r->width / r->cluster, 1, 0},
        [UP] = {CUP__READ_UP, r->width, divide_up(r->columns, r->cluster), 1 + r->a->gated, 0},
        [DOWN] = {CUP__READ_DOWN, r->columns, r->width / r->cluster, 1, 0}};
    r->stage_bytes = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        taking *t = &r->takings[i];
        *t = all[i];
        int64_t most = stage_most / stage_of(t, 1);
        while (most > 1 && stage_of(t, most) > stage_most)
            most--;
        most = most < 1 ? 1 : most > BOX_MOST ? BOX_MOST : most;
        t->box = divide_up(t->lines, divide_up(t->lines, most));
        if (stage_of(t, t->box) > r->stage_bytes)
            r->stage_bytes = stage_of(t, t->box);
    }
}

/* Cuts the call for so many clusters; why that cannot be done, or NULL. */
static const char *cut(reading *r, const cup__gpu_facts *facts, int64_t clusters)
{
    r->clusters = clusters < r->hidden / 8 ? clusters : r->hidden / 8;
    if (r->clusters < 1)
        return "it has too few columns in the MLP, or the card no room for clusters";
    r->columns = 8 * divide_up(r->hidden / 8, r->clusters);
    if (r->columns > WIDTH_MOST)
        return "the MLP is too wide for this card";
    r->extra = r->columns + (1 + r->a->gated) * divide_up(r->columns, r->cluster);
    choose_boxes(r, STAGE_MOST);
    r->beside = beside_of(r);
    /* Half of it, so that the next layer's blocks bring weights meanwhile, if that is enough. */
    int64_t taken = r->beside + 4 * r->extra;
    r->stages = ((facts->shared_per_block + RESERVED) / 2 - RESERVED - taken) / r->stage_bytes;
    if (r->stages < STAGES_LEAST) {
        choose_boxes(r, STAGE_ALONE);
        r->stages = (facts->shared_per_block - taken) / r->stage_bytes;
    }
    r->stages = r->stages > STAGES_MOST ? STAGES_MOST : r->stages;
    return r->stages < STAGES_LEAST ? "shared memory has no room for it" : NULL;
}

static bool lies_well(const reading *r)
{
    for (int i = 0; i < CUP__READ_INPUTS; i++)
        if (r->in[i] && (!r->in[i]->contiguous ||
                         (i != CUP__READ_POSITION && (uintptr_t)r->in[i]->data % 16)))
            return false;
    return true;
}

static const char *refuses_for(cup_context *c, cup_tensor **in, const void *attributes)
{
    reading r = reading_of(in, attributes);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    cup_dtype dtype = in[CUP__READ_X]->dtype;
    if (facts->major != 9 || !cup__driver.cuOccupancyMaxActiveClusters ||
        !cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "it is for Hopper (sm_90)";
    if (dtype != CUP_F16 && dtype != CUP_BF16)
        return "it multiplies bf16 and f16 only";
    if (r.width % 8 || r.size % 8 || r.hidden % 8 || r.width > WIDTH_MOST || r.size > SIZE_MOST ||
        r.size < 8 || r.group * r.size > WIDTH_MOST)
        return "sizes are no multiples of 8, or too large";
    if (!lies_well(&r))
        return "an input is not contiguous or not aligned to 16 bytes";
    r.cluster = cluster_of(&r, facts);
    return cut(&r, facts, facts->multiprocessors / r.cluster);
}

static const char *refuses(const cup__call *call)
{
    return refuses_for(call->c, call->in, call->attributes);
}

bool cup__transformer_read_takes(cup_context *c, cup_tensor **in,
                                 const cup__transformer_read_attributes *attributes)
{
    return cup_device_is_cuda(c) && !refuses_for(c, in, attributes);
}

static cup__kernel *kernel_of(cup__cuda *gpu, const reading *r)
{
    const cup__knob knobs[] = {{"CUP_T", r->in[CUP__READ_X]->dtype},
                               {"CUP_ID", r->in[CUP__READ_POSITION]->dtype},
                               {"WIDTH", r->width},
                               {"HEADS", r->group},
                               {"KV_HEADS", r->kv_heads},
                               {"SIZE", r->size},
                               {"HIDDEN", r->hidden},
                               {"GATED", r->a->gated},
                               {"RMS", r->a->rms},
                               {"TURNED", r->a->rope_base > 0},
                               {"CLUSTER", r->cluster},
                               {"STAGES", r->stages},
                               {"STAGE_BYTES", r->stage_bytes},
                               {"COLUMNS_MOST", r->columns},
                               {"QKV_BOX", r->takings[QKV].box},
                               {"OUT_BOX", r->takings[OUT].box},
                               {"UP_BOX", r->takings[UP].box},
                               {"DOWN_BOX", r->takings[DOWN].box},
                               {"BESIDE", r->beside}};
    return cup__kernel_get(gpu, "transformer_read.cu", "transformer_read", knobs,
                           (int)(sizeof knobs / sizeof *knobs));
}

static cup__grid grid_of(const reading *r)
{
    return (cup__grid){.x = r->clusters * r->cluster,
                       .threads = LAYER_THREADS,
                       .shared = (int)(r->stages * r->stage_bytes + r->beside + 4 * r->extra),
                       .cluster = (int)r->cluster,
                       .dependent = true};
}

/* The kernel for as many clusters as run at once, since all its blocks wait for each other. */
static cup_status choose(cup__call *call, reading *r, cup__kernel **kernel)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    const char *why = cut(r, facts, facts->multiprocessors / r->cluster);
    for (int tries = 0; !why && tries < 2; tries++) {
        *kernel = kernel_of(gpu, r);
        if (!*kernel)
            return call->c->error.status;
        cup__grid grid = grid_of(r);
        int most = 0;
        CUP_TRY(cup__clusters_at_once(gpu, *kernel, &grid, &most));
        if (most >= r->clusters)
            return CUP_OK;
        why = cut(r, facts, most);
    }
    return cup__call_fail(call, CUP_UNSUPPORTED, "%s",
                          why ? why : "the card has no room for its clusters");
}

static void fill(layer_call *to, const reading *r, cup_tensor **out)
{
    cup_tensor **in = r->in;
    *to = (layer_call){.x = in[CUP__READ_X]->data,
                       .delta = cup__data_of(in[CUP__READ_DELTA]),
                       .position = in[CUP__READ_POSITION]->data,
                       .keys = in[CUP__READ_KEYS]->data,
                       .values = in[CUP__READ_VALUES]->data,
                       .norm1 = in[CUP__READ_NORM1]->data,
                       .norm1_bias = cup__data_of(in[CUP__READ_NORM1_BIAS]),
                       .qkv = in[CUP__READ_QKV]->data,
                       .qkv_bias = cup__data_of(in[CUP__READ_QKV_BIAS]),
                       .out = in[CUP__READ_OUT]->data,
                       .out_bias = cup__data_of(in[CUP__READ_OUT_BIAS]),
                       .norm2 = in[CUP__READ_NORM2]->data,
                       .norm2_bias = cup__data_of(in[CUP__READ_NORM2_BIAS]),
                       .up = in[CUP__READ_UP]->data,
                       .up_bias = cup__data_of(in[CUP__READ_UP_BIAS]),
                       .down = in[CUP__READ_DOWN]->data,
                       .down_bias = cup__data_of(in[CUP__READ_DOWN_BIAS]),
                       .sum = out[0]->data,
                       .change = out[1]->data,
                       .length = (int)r->length,
                       .eps = (float)r->a->eps,
                       .scale = (float)(M_LOG2E / sqrt((double)r->size))};
    if (r->a->rope_base > 0)
        cup__rope_frequencies(&(cup__rope_rule){.base = r->a->rope_base}, r->size / 2, false,
                              to->frequency);
}

static cup_status encode(cup_context *c, const cup_tensor *weight, const taking *t,
                         CUtensorMap *map)
{
    uint64_t sizes[2] = {(uint64_t)weight->shape[1], (uint64_t)weight->shape[0]};
    uint64_t strides[1] = {2 * sizes[0]};
    uint32_t box[2] = {(uint32_t)LAYER_PIECE(t->columns), (uint32_t)t->box}, steps[2] = {1, 1};
    CUresult result = cup__driver.cuTensorMapEncodeTiled(
        map, weight->dtype == CUP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2, weight->data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS
               ? CUP_OK
               : cup__fail(&c->error, CUP_INTERNAL,
                           "transformer_read: the driver refused a tensor map of %lld x %lld "
                           "elements, with error %d",
                           (long long)weight->shape[0], (long long)weight->shape[1], (int)result);
}

static cup_status run_cuda(cup__call *call)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    reading r = reading_of(call->in, call->attributes);
    cup__product_state *state = cup__product_state_of(c);
    cup__kernel *kernel = NULL;
    if (!state)
        return c->error.status;
    r.cluster = cluster_of(&r, cup__cuda_facts(gpu));
    CUP_TRY(choose(call, &r, &kernel));
    CUtensorMap maps[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++)
        CUP_TRY(encode(c, call->in[r.takings[i].weight], &r.takings[i], &maps[i]));
    layer_call argument;
    fill(&argument, &r, call->out);
    argument.attended = state->workspace;
    argument.parts = argument.attended + r.kv_heads * r.width;
    argument.counters = state->counters;
    /* Layers that follow each other may bring weights before the one in front is done. */
    argument.ahead = cup__launched_last(gpu, kernel);
    return cup__launch(gpu, kernel, grid_of(&r), CUP__ARG(maps[QKV]), CUP__ARG(maps[OUT]),
                       CUP__ARG(maps[UP]), CUP__ARG(maps[DOWN]), CUP__ARG(argument));
}

static int64_t positions(cup_tensor *const *in, int i, const void *attributes)
{
    (void)attributes;
    return i == CUP__READ_POSITION ? in[CUP__READ_KEYS]->shape[2] : 0;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    reading r = reading_of(call->in, call->attributes);
    double weights = (double)(r.width * ((r.heads * 2 + 2 * r.kv_heads) * r.size +
                                         r.hidden * (2 + r.a->gated)));
    double kept = 2.0 * (double)(r.kv_heads * r.length * r.size);
    *bytes = (weights + kept) * (double)cup_dtype_size(call->in[0]->dtype);
    *flops = 2 * weights + 4 * (double)(r.heads * r.length * r.size);
}

static const cup__impl impls[] = {
    {.name = "cluster", .place = CUP__CUDA, .strided = true, .refuses = refuses, .run = run_cuda},
    {0}};
#define WITH(...) &(const cup__transformer_read_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x768 1x12x300x64 1x12x300x64 1 768 2304x768 768x768 768 3072x768 768x3072 1x1x768 "
     "768 2304 768 768 3072 768",
     WITH(12, 1e-5, false, false, 0)},
    {"1x1x768 1x12x9x64 1x12x9x64 1 768 2304x768 768x768 768 3072x768 768x3072 - 768 2304 "
     "768 768 3072 768",
     WITH(12, 1e-5, false, false, 0)},
    {"1x1x512 1x2x700x64 1x2x700x64 1 512 768x512 512x512 512 2816x512 512x1408 1x1x512 - - "
     "- - - -",
     WITH(8, 1e-6, true, true, 1e4)},
    {"1x1x320 1x20x40x16 1x20x40x16 1 320 960x320 320x320 320 1288x320 320x1288 1x1x320 320 "
     "960 320 320 1288 320",
     WITH(20, 1e-5, false, false, 0)},
    {"1x1x1024 1x1x35x128 1x1x35x128 1 1024 1024x1024 1024x768 1024 1024x1024 1024x512 "
     "1x1x1024 - - - - - -",
     WITH(6, 1e-5, true, true, 5e5)},
    {"1x1x264 1x3x20x24 1x3x20x24 1 264 288x264 264x144 264 560x264 264x280 1x1x264 - - - - - -",
     WITH(6, 1e-5, true, true, 1e4)},
    {NULL, NULL}};
static const cup__sample bench[] = {
    {"1x1x768 1x12x1024x64 1x12x1024x64 1 768 2304x768 768x768 768 3072x768 768x3072 1x1x768 "
     "768 2304 768 768 3072 768",
     WITH(12, 1e-5, false, false, 0)},
    {"1x1x2048 1x4x1024x128 1x4x1024x128 1 2048 3072x2048 2048x2048 2048 8192x2048 2048x4096 "
     "1x1x2048 - - - - - -",
     WITH(16, 1e-5, true, true, 5e5)},
    {NULL, NULL}};

const cup__op cup__op_transformer_read = {
    .infer = infer,
    .specification = cup__transformer_read_specification,
    .impls = impls,
    .in_place = 1u << CUP__READ_KEYS | 1u << CUP__READ_VALUES,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {-2, 2}, {-2, 2}, {0, 64}, {-1, 1}, {-0.06, 0.06}, {-0.06, 0.06},
               {-1, 1}, {-0.06, 0.06}, {-0.06, 0.06}, {-1, 1}, {-0.5, 0.5}},
    .indices = positions,
    .in_dtypes = {0, 0, 0, CUP__DTYPES_INDEX},
    .tolerance = 32, /* as attention */
    .cost = cost,
};
