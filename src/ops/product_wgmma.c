#include "ops/product_wgmma.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/loader.h"
#include "kernels/product_call.cuh"
#include "kernels/wgmma_call.cuh"
#include "ops/product_operand.h"
#include "ops/product_recall.h"

#define SHARED_MOST 232448

/* Whether TMA can write y: rows of whole pieces of 16 bytes, which is what it writes even where
 * the tensor map says that less is there. */
static bool can_store(const cup__product *p)
{
    cup_dtype y = cup__product_y_dtype(p);
    bool good = is_sixteen(p->y.row, y) && is_sixteen(p->n, y) && (uintptr_t)p->y.data % 16 == 0 &&
                (uintptr_t)p->pre % 16 == 0;
    for (int i = 0; i < p->batch_ndim; i++)
        good = good && is_sixteen(p->y.batch[i], y);
    return good;
}

/* The kernel has one scale of b for all columns of a tile, and looks at all scales. */
static bool blocks_fit(const cup__scaling *s)
{
    return s->a.data && s->b.data && (s->b.line == 0 || 1 << s->b.shift == PRODUCT_SCALE_DEPTH);
}

const char *cup__product_wgmma_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    operand a, b;
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->dtype != CUP_BF16 && p->dtype != CUP_F16 && !p->scaling)
        return "it multiplies bf16, f16 and codes of 8 bits";
    if (p->k == 0)
        return "there is nothing to sum";
    if (p->batch_ndim > BATCH_MOST)
        return "the batch has more than two dimensions that do not merge";
    if (p->m > INT32_MAX || p->n > INT32_MAX)
        return "a side is longer than 2^31";
    if ((uintptr_t)p->bias % (uintptr_t)(2 * cup_dtype_size(cup__product_y_dtype(p))))
        return "the bias starts between two places for pairs";
    if (p->scaling && p->scaling->kind == PRODUCT_SCALE_BLOCKS && !blocks_fit(p->scaling))
        return "the scales of b are not for blocks of 128 rows";
    if (!take_operands(p, &a, &b))
        return "the lines of an input do not start at multiples of 16 bytes";
    if (p->summing && (a.along != PRODUCT_ALONG_MN || p->batch_ndim || p->scaling))
        return "it sums the lines of one matrix that lies along m";
    bool whole = can_store(p) && (uintptr_t)p->other % 16 == 0;
    if (p->kind == CUP__THROUGH_SWIGLU && p->batch_ndim)
        return "it takes the way back through swiglu of one matrix";
    if ((p->kind || p->adding || p->activation == CUP__SWIGLU) && !whole)
        return "the lines of the result do not start at multiples of 16 bytes";
    if (p->activation == CUP__SWIGLU && (b.along != PRODUCT_ALONG_K || p->batch_ndim))
        return "it takes swiglu of one matrix, and weights whose k lies together";
    return NULL;
}

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

static int shared_bytes(const cup__product *p, const cup__wgmma_plan *plan)
{
    int stage = (plan->tile_m + (plan->tile_n + 63) / 64 * 64) * LINE_BYTES;
    int kind = p->scaling ? p->scaling->kind : PRODUCT_SCALE_NONE;
    bool once = kind == PRODUCT_SCALE_BLOCKS || plan->consumers == 3; /* one buffer, not two */
    int staged = plan->consumers * 4 * 2048 * (once ? 1 : 2);
    int bias = plan->consumers * 2 * plan->tile_n * (int)cup_dtype_size(cup__product_y_dtype(p));
    int scales = kind == PRODUCT_SCALE_BLOCKS  ? plan->stages * (plan->tile_m + 32) * 4
                 : kind == PRODUCT_SCALE_LINES ? plan->consumers * plan->tile_n * 4
                                               : 0;
    int other = plan->tile_m * plan->tile_n * (int)cup_dtype_size(cup__product_y_dtype(p)) *
                (p->kind == CUP__THROUGH_SWIGLU ? 2 : p->kind ? 1 : 0);
    return plan->stages * stage + other + staged + (p->bias ? bias : 0) + scales +
           16 * plan->stages + 32;
}

/* How the work is cut. */
typedef struct cut {
    int64_t k_tiles, tiles_m, tiles_n, tiles; /* tiles of clusters; of all matrices */
    int64_t part_tiles, parts;
} cut;

static cut cut_of(const cup__product *p, const cup__wgmma_plan *plan)
{
    cut w = {.k_tiles = divide_up(p->k, tile_k(p)),
             .tiles_m = divide_up(p->m, (int64_t)plan->tile_m * plan->cluster_m),
             .tiles_n = divide_up(b_columns(p), (int64_t)plan->tile_n * plan->cluster_n)};
    w.tiles = w.tiles_m * w.tiles_n * p->batch_count;
    if (p->groups.kind == PRODUCT_GROUPS_OF_ROWS) /* the most that there can be */
        w.tiles = (p->m / plan->tile_m + p->batch_count) * w.tiles_n;
    w.part_tiles = divide_up(w.k_tiles, plan->parts);
    w.parts = divide_up(w.k_tiles, w.part_tiles);
    return w;
}

/* Rows of tiles walked together, so that what runs at a time covers about a square of y. */
static int group_of(const cup__wgmma_plan *plan, int multiprocessors)
{
    double rows = sqrt((double)multiprocessors * plan->tile_n / plan->tile_m);
    int group = (int)(rows / plan->cluster_m + 0.5);
    return plan->group ? plan->group : group < 1 ? 1 : group;
}

/* Whether the sums of each k-tile leave the tensor cores. */
static bool promotes(const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    return s && (s->kind == PRODUCT_SCALE_BLOCKS || (p->dtype != CUP_I8 && !s->fast));
}

/* Blocks whose parts of k meet in memory; the bytes of their sums, and counters of who has come. */
static int64_t meeting(const cup__wgmma_plan *plan, const cut *w)
{
    return w->parts > 1 && !plan->cluster_k ? w->tiles * plan->cluster_m * plan->cluster_n : 0;
}

static int64_t partial_bytes(const cup__wgmma_plan *plan, const cut *w)
{
    return meeting(plan, w) * w->parts * plan->tile_m * plan->tile_n * (int64_t)sizeof(float);
}

/* Of the shares in the sums of a's lines, of which there are so many with those of empty rows. */
static int64_t summed_lines(const cup__product *p, const cup__wgmma_plan *plan, const cut *w)
{
    return p->summing ? w->tiles_m * plan->cluster_m * plan->tile_m : 0;
}

static int64_t share_bytes(const cup__product *p, const cup__wgmma_plan *plan, const cut *w)
{
    return summed_lines(p, plan, w) * w->tiles_n * w->parts * (int64_t)sizeof(float);
}

/* Whether the parts of a tile can meet in the memory of a cluster's stages. */
static bool can_meet(const cup__product *p, const cup__wgmma_plan *plan, const cut *w)
{
    int size = (int)cup_dtype_size(cup__product_y_dtype(p));
    int columns = (plan->tile_n * size % LINE_BYTES ? LINE_BYTES / 2 : LINE_BYTES) / size;
    int rows = plan->tile_m / plan->consumers, chunks = rows / 64 * plan->tile_n / columns;
    int each = (chunks + plan->cluster_k - 1) / plan->cluster_k * plan->cluster_k;
    int stage = (plan->tile_m + plan->tile_n) * LINE_BYTES;
    return w->parts == plan->cluster_k && !plan->pingpong && !p->groups.kind && !p->scaling &&
           each * plan->consumers * 64 * columns * 4 <= plan->stages * stage;
}

const char *cup__wgmma_plan_refuses(const cup__product *p, const cup__wgmma_plan *plan)
{
    cut w = cut_of(p, plan);
    int64_t blocks = (int64_t)plan->cluster_m * plan->cluster_n;
    bool swiglu = p->activation == CUP__SWIGLU;
    if (p->summing && (plan->tile_m > 192 || plan->cluster_n > 1))
        return "its tiles of a have no warp for each panel, or are shared";
    if (shared_bytes(p, plan) > SHARED_MOST)
        return "it needs more shared memory than a block can have";
    if (p->scaling && w.parts > 1 && (p->dtype == CUP_I8 || promotes(p)))
        return "its sums cannot be cut into parts";
    if (p->groups.kind && (w.parts > 1 || blocks > 1 || plan->tile_n % 64))
        return "groups are not cut into parts, nor shared by clusters, nor have they half panels";
    if (p->scaling && promotes(p) && plan->tile_n > PRODUCT_SCALE_DEPTH)
        return "its tile is wider than what one scale is for";
    if (swiglu && (plan->tile_n % 128 || plan->cluster_n > 1 || w.parts > 1))
        return "its tiles are not for two halves";
    if (plan->cluster_k && (blocks > 1 || !can_meet(p, plan, &w)))
        return "its parts cannot meet in a cluster";
    if (w.parts > 1 && blocks > 1) /* which are not sure to be there all at a time */
        return "clusters are not cut into parts";
    if (w.tiles * w.parts * blocks > INT32_MAX)
        return "there are more than 2^31 tiles";
    if (partial_bytes(plan, &w) + share_bytes(p, plan, &w) > (int64_t)CUP__WORKSPACE_BYTES ||
        meeting(plan, &w) * plan->consumers + summed_lines(p, plan, &w) / 64 > CUP__COUNTERS)
        return "the sums of its parts do not fit the workspace";
    return NULL;
}

static CUtensorMapDataType type_of(cup_dtype dtype)
{
    return cup_dtype_size(dtype) == 4   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : cup_dtype_size(dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : dtype == CUP_F16           ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/* A tensor map over lines of elements. */
static cup_status encode(cup_context *c, CUtensorMap *map, const cup__product *p, const void *data,
                         const operand *o, int64_t box_length, int64_t box_lines)
{
    uint64_t sizes[4] = {(uint64_t)o->length, (uint64_t)o->lines, 1, 1};
    uint64_t size = (uint64_t)cup_dtype_size(o->dtype);
    uint64_t whole = (uint64_t)o->distance * size * (uint64_t)o->lines;
    uint64_t strides[3] = {(uint64_t)o->distance * size, whole, whole};
    uint32_t box[4] = {(uint32_t)box_length, (uint32_t)box_lines, 1, 1}, steps[4] = {1, 1, 1, 1};
    for (int i = 0; i < p->batch_ndim; i++)
        if (o->batch[i]) {
            sizes[2 + i] = (uint64_t)p->batch_size[p->batch_ndim - 1 - i];
            strides[1 + i] = (uint64_t)o->batch[i] * size;
        }
    uint32_t dims = 2 + (uint32_t)p->batch_ndim;
    CUresult result = cup__driver.cuTensorMapEncodeTiled(
        map, type_of(o->dtype), dims, (void *)(uintptr_t)data, sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE,
        (int64_t)size * box_length == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    return cup__fail(&c->error, CUP_INTERNAL,
                     "matrix product: the driver refused a tensor map of %lld x %lld elements, "
                     "lines %lld apart, with error %d",
                     (long long)o->lines, (long long)o->length, (long long)o->distance,
                     (int)result);
}

typedef struct maps {
    CUtensorMap a, b, y, pre;
} maps;

/* What lies as y does, or as two matrices of n columns side by side. */
static cup_status encode_result(cup_context *c, const cup__product *p, const void *data,
                                const operand *y, const int64_t *box, bool halves, CUtensorMap *map)
{
    operand o = *y;
    cup__product two = *p;
    if (halves) {
        o.distance = 2 * p->n;
        o.batch[0] = p->n;
        two.batch_ndim = 1;
        two.batch_size[0] = 2;
    }
    return encode(c, map, &two, data, &o, box[0], box[1]);
}

static cup_status encode_all(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                             const operand *a, const operand *b, bool store, maps *to)
{
    bool a_k = a->along == PRODUCT_ALONG_K, b_k = b->along == PRODUCT_ALONG_K;
    int shared_a = plan->cluster_n, shared_b = plan->cluster_m;
    int64_t depth = tile_k(p);
    CUP_TRY(encode(c, &to->a, p, p->a.data, a, depth, (a_k ? plan->tile_m : depth) / shared_a));
    int64_t columns = p->activation == CUP__SWIGLU ? plan->tile_n / 2 : plan->tile_n;
    CUP_TRY(encode(c, &to->b, p, p->b.data, b, depth, (b_k ? columns : depth) / shared_b));
    to->y = to->pre = to->a;
    if (!store)
        return CUP_OK;
    operand y = {.length = p->n,
                 .lines = p->m,
                 .distance = p->m == 1 ? (p->n + 7) / 8 * 8 : p->y.row,
                 .dtype = cup__product_y_dtype(p)};
    int64_t size = cup_dtype_size(y.dtype);
    int64_t line = (columns * size % LINE_BYTES ? LINE_BYTES / 2 : LINE_BYTES) / size;
    for (int i = 0; i < p->batch_ndim; i++)
        y.batch[i] = p->y.batch[p->batch_ndim - 1 - i];
    const int64_t staged[] = {line, 16}, tile[] = {line, plan->tile_m};
    bool back = p->kind == CUP__THROUGH_SWIGLU, halves = p->activation == CUP__SWIGLU;
    CUP_TRY(encode_result(c, p, p->y.data, &y, staged, back, &to->y));
    if (p->kind)
        return encode_result(c, p, p->other, &y, tile, back, &to->pre);
    return p->pre ? encode_result(c, p, p->pre, &y, staged, halves, &to->pre) : CUP_OK;
}

static cup__kernel *kernel_of(cup__cuda *gpu, const cup__product *p, const cup__wgmma_plan *plan,
                              const operand *a, const operand *b, bool store)
{
    cup_dtype y = cup__product_y_dtype(p);
    cup__knob knobs[] = {
        {"CUP_T", p->dtype},
        {"B_T", p->scaling ? p->scaling->b_dtype : p->dtype},
        {"Y_T", y == CUP_I32 ? CUP_F32 : y}, /* which are not looked into */
        {"GROUPS", p->groups.kind},
        {"SCALES", p->scaling ? p->scaling->kind : PRODUCT_SCALE_NONE},
        {"PROMOTE", promotes(p)},
        {"TILE_M", plan->tile_m},
        {"TILE_N", plan->tile_n},
        {"CONSUMERS", plan->consumers},
        {"PINGPONG", plan->pingpong},
        {"STAGES", plan->stages},
        {"CLUSTER_M", plan->cluster_m},
        {"CLUSTER_N", plan->cluster_n},
        {"CLUSTER_K", plan->cluster_k ? plan->cluster_k : 1},
        {"A_ALONG", a->along},
        {"B_ALONG", b->along},
        {"BATCH", p->batch_ndim},
        {"HAS_BIAS", p->bias != NULL},
        {"HAS_PRE", p->pre != NULL},
        {"ACTIVATION", p->activation},
        {"OTHER", p->kind},
        {"FACTOR", p->factor != 1},
        {"PARTS", plan->parts > 1},
        {"ADDING", p->adding},
        {"SUM_A", p->summing},
        {"Y_DIRECT", !store},
        {"WATCHDOG", plan->watchdog},
    };
    return cup__kernel_get(gpu, "matmul_sm90.cu", "matmul_sm90", knobs,
                           sizeof knobs / sizeof *knobs);
}

static void fill_call(wgmma_call *to, const cup__product *p, const operand *a, const operand *b,
                      const cut *w)
{
    memset(to, 0, sizeof *to);
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->a_sums = p->a_sums;
    to->other = p->other;
    to->factor = p->factor;
    to->y_row = p->y.row;
    to->m = (int)p->m;
    to->n = (int)p->n;
    to->k_tiles = (int)w->k_tiles;
    to->tiles_m = (int)w->tiles_m;
    to->tiles_n = (int)w->tiles_n;
    to->units = (int)(w->tiles * w->parts);
    to->parts = (int)w->parts;
    to->part_tiles = (int)w->part_tiles;
    to->groups = p->groups.table;
    to->group_count = (int)p->batch_count;
    if (p->scaling) {
        to->a_scale = p->scaling->a;
        to->b_scale = p->scaling->b;
    }
    to->batch_inner = p->batch_ndim ? (int)p->batch_size[p->batch_ndim - 1] : 1;
    for (int i = 0; i < p->batch_ndim; i++) {
        to->a_batch[i] = a->batch[i] != 0;
        to->b_batch[i] = b->batch[i] != 0;
        to->y_batch[i] = p->y.batch[p->batch_ndim - 1 - i];
    }
}

/* A launch as it is kept for equal products. */
typedef struct launch {
    cup__wgmma_plan plan;
    cup__kernel *kernel;
    cup__grid grid;
    bool store;
    wgmma_call argument;
    maps map;
} launch;

static cup_status describe(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                           launch *l)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    operand a, b;
    take_operands(p, &a, &b);
    cut w = cut_of(p, plan);
    l->plan = *plan;
    l->store = can_store(p);
    CUP_TRY(encode_all(c, p, plan, &a, &b, l->store, &l->map));
    fill_call(&l->argument, p, &a, &b, &w);
    l->argument.group = group_of(plan, cup__cuda_facts(gpu)->multiprocessors);
    if ((w.parts > 1 && !plan->cluster_k) || p->summing) {
        cup__product_state *state = cup__product_state_of(c);
        if (!state)
            return c->error.status;
        l->argument.partial = state->workspace;
        l->argument.arrived = state->counters;
        l->argument.shares =
            l->argument.partial + partial_bytes(plan, &w) / (int64_t)sizeof(float);
        l->argument.shares_come = l->argument.arrived + meeting(plan, &w) * plan->consumers;
    }
    l->kernel = kernel_of(gpu, p, plan, &a, &b, l->store);
    if (!l->kernel)
        return c->error.status;
    int64_t blocks = (int64_t)plan->cluster_m * plan->cluster_n, units = l->argument.units;
    int64_t most = cup__cuda_facts(gpu)->multiprocessors / blocks;
    /* A block whose part meets others in a cluster has one unit. */
    bool all = units < most || plan->cluster_k;
    l->grid = (cup__grid){
        .x = (all ? units : most) * blocks,
        .threads = 128 * (plan->consumers + 1),
        .shared = shared_bytes(p, plan),
        .cluster = plan->cluster_k ? plan->cluster_k : (int)blocks,
    };
    return CUP_OK;
}

static bool aim_map(CUtensorMap *map, const void *at)
{
    return cup__driver.cuTensorMapReplaceAddress(map, (void *)(uintptr_t)at) == CUDA_SUCCESS;
}

/* Aims a launch that was described for an equal product at this one's memory. */
static bool aim(launch *l, const cup__product *p)
{
    const void *pre = p->kind ? p->other : p->pre;
    l->argument.bias = p->bias;
    l->argument.y = p->y.data;
    l->argument.pre = p->pre;
    l->argument.a_sums = p->a_sums;
    l->argument.other = p->other;
    return aim_map(&l->map.a, p->a.data) && aim_map(&l->map.b, p->b.data) &&
           (!l->store || aim_map(&l->map.y, p->y.data)) &&
           (!l->store || !pre || aim_map(&l->map.pre, pre));
}

/* From what is remembered; false when it is not, or of another plan. */
static bool find_launch(const cup__recalled *place, const cup__product *p,
                        const cup__wgmma_plan *plan, launch *l)
{
    if (!place || !place->launch || !cup__driver.cuTensorMapReplaceAddress)
        return false;
    memcpy(l, place->launch, sizeof *l);
    return !memcmp(&l->plan, plan, sizeof *plan) && aim(l, p);
}

cup_status cup__product_wgmma_by(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan)
{
    launch l = {0};
    cup__recalled *place = cup__product_recalled(c, p);
    if (!find_launch(place, p, plan, &l)) {
        CUP_TRY(describe(c, p, plan, &l));
        if (place && !place->launch)
            place->launch = cup__malloc(sizeof l);
        if (place && place->launch)
            memcpy(place->launch, &l, sizeof l);
    }
    return cup__launch(cup__cuda_of(c->device), l.kernel, l.grid, CUP__ARG(l.map.a),
                       CUP__ARG(l.map.b), CUP__ARG(l.map.y), CUP__ARG(l.map.pre),
                       CUP__ARG(l.argument));
}

cup_status cup__product_wgmma(cup__call *call, const cup__product *p)
{
    cup__wgmma_plan plan;
    cup__product_choice(call->c, p, &plan);
    if (plan.parts < 1)
        return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this product");
    return cup__product_wgmma_by(call->c, p, &plan);
}

const char *cup__product_wgmma_best_refuses(cup_context *c, const cup__product *p)
{
    const char *why = cup__product_wgmma_refuses(c, p);
    if (why)
        return why;
    cup__wgmma_plan plan;
    return cup__product_choice(c, p, &plan) ? NULL : "cuBLASLt is likely to be faster";
}

cup_status cup__product_wgmma_best(cup__call *call, const cup__product *p)
{
    return cup__product_wgmma(call, p);
}
