#include "ops/product_wgmma.h"

#include <math.h>
#include <string.h>

#include "cuda/loader.h"
#include "kernels/product_call.cuh"
#include "kernels/wgmma_call.cuh"
#include "ops/product_state.h"
#include "ops/product_wgmma_maps.h"

#define LINE_BYTES 128 /* of a swizzled line, and of a tile along k */
#define SHARED_MOST 232448
#define PIECE_BYTES 2048 /* of a result, at most, that a warp hands to TMA at a time */

static bool is_sixteen(int64_t elements, cup_dtype dtype)
{
    return elements * cup_dtype_size(dtype) % 16 == 0;
}

/* Elements of a tile along k. */
static int64_t tile_k(const cup__product *p)
{
    return LINE_BYTES / cup_dtype_size(p->dtype);
}

/* Takes the direction in which the elements of a matrix lie side by side, k when both would do.
 * False when TMA cannot read it. */
static bool take_operand(const cup__product *p, const cup__matrix *m, int64_t mn, int64_t step_mn,
                         int64_t step_k, cup__wgmma_operand *out)
{
    bool along_k = (step_k == 1 || p->k == 1) && (mn == 1 || is_sixteen(step_mn, p->dtype));
    bool along_mn =
        (step_mn == 1 || mn == 1) && !p->scaling && (p->k == 1 || is_sixteen(step_k, p->dtype));
    out->dtype = p->dtype;
    out->along = along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN;
    out->length = along_k ? p->k : mn;
    out->lines = along_k ? mn : p->k;
    out->distance = along_k ? step_mn : step_k;
    if (out->lines == 1)
        out->distance = (out->length + 15) / 16 * 16;
    bool good = (along_k || along_mn) && (uintptr_t)m->data % 16 == 0 && out->length <= INT32_MAX &&
                out->lines <= INT32_MAX && out->distance >= out->length &&
                out->distance * out->lines < INT64_C(1) << 38;
    for (int i = 0; i < CUP__WGMMA_BATCH; i++) {
        out->batch[i] = i < p->batch_ndim ? m->batch[p->batch_ndim - 1 - i] : 0;
        good = good && is_sixteen(out->batch[i], p->dtype) && out->batch[i] < INT64_C(1) << 38;
    }
    return good;
}

/* Columns of b. */
static int64_t b_columns(const cup__product *p)
{
    return p->activation == CUP__SWIGLU ? 2 * p->n : p->n;
}

bool cup__wgmma_operands(const cup__product *p, cup__wgmma_operand *a, cup__wgmma_operand *b)
{
    return take_operand(p, &p->a, p->m, p->a.row, p->a.column, a) &&
           take_operand(p, &p->b, b_columns(p), p->b.column, p->b.row, b);
}

/* Whether TMA can write y: rows of whole pieces of 16 bytes, which is what it writes even where
 * the tensor map says that less is there. */
bool cup__wgmma_can_store(const cup__product *p)
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
    cup__wgmma_operand a, b;
    if (facts->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled || !cup__driver.cuLaunchKernelEx)
        return "the driver is too old for tensor maps";
    if (p->dtype != CUP_BF16 && p->dtype != CUP_F16 && !p->scaling)
        return "it multiplies bf16, f16 and codes of 8 bits";
    if (p->k == 0)
        return "there is nothing to sum";
    if (p->batch_ndim > CUP__WGMMA_BATCH)
        return "the batch has more than two dimensions that do not merge";
    if (p->m > INT32_MAX || p->n > INT32_MAX)
        return "a side is longer than 2^31";
    if ((uintptr_t)p->bias % (uintptr_t)(2 * cup_dtype_size(cup__product_bias_dtype(p))))
        return "the bias starts between two places for pairs";
    if (p->scaling && p->scaling->kind == PRODUCT_SCALE_BLOCKS && !blocks_fit(p->scaling))
        return "the scales of b are not for blocks of 128 rows";
    if (!cup__wgmma_operands(p, &a, &b))
        return "the lines of an input do not start at multiples of 16 bytes";
    bool whole = cup__wgmma_can_store(p) && (uintptr_t)p->other % 16 == 0;
    if (p->dropping && p->batch_ndim)
        return "it drops elements of one matrix";
    if (p->kind == CUP__THROUGH_SWIGLU && p->batch_ndim)
        return "it takes the way back through swiglu of one matrix";
    if ((p->kind || p->dropping || p->activation == CUP__SWIGLU) && !whole)
        return "the lines of the result do not start at multiples of 16 bytes";
    if (p->activation == CUP__SWIGLU && (b.along != PRODUCT_ALONG_K || p->batch_ndim))
        return "it takes swiglu of one matrix, and weights whose k lies together";
    return NULL;
}

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

/* Whether the sums of each k-tile leave the tensor cores. */
static bool promotes(const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    return s && (s->kind == PRODUCT_SCALE_BLOCKS || (p->dtype != CUP_I8 && !s->fast));
}

/* Shared memory without that for results on their way. */
static int working_bytes(const cup__product *p, const cup__wgmma_plan *plan)
{
    int stage = (plan->tile_m + (plan->tile_n + 63) / 64 * 64) * LINE_BYTES;
    int kind = p->scaling ? p->scaling->kind : PRODUCT_SCALE_NONE;
    int bias =
        plan->consumers * 2 * plan->tile_n * (int)cup_dtype_size(cup__product_bias_dtype(p));
    int scales = kind == PRODUCT_SCALE_BLOCKS  ? plan->stages * (plan->tile_m + 32) * 4
                 : kind == PRODUCT_SCALE_LINES ? plan->consumers * plan->tile_n * 4
                                               : 0;
    int other = plan->tile_m * plan->tile_n * (int)cup_dtype_size(cup__product_y_dtype(p)) *
                (p->kind == CUP__THROUGH_SWIGLU ? 2
                 : p->kind                      ? 1
                                                : 0);
    return plan->stages * stage + other + (p->bias ? bias : 0) + scales + 16 * plan->stages + 32;
}

/* How many pieces of 16 lines each warp can have on their way. Where all warps finish at a time
 * while tensor cores idle, as they do where sums leave these, none shall wait for its pieces. */
static int staging_buffers(const cup__product *p, const cup__wgmma_plan *plan)
{
    if (!promotes(p))
        return 2;
    int rows = plan->pingpong ? plan->tile_m : plan->tile_m / plan->consumers;
    int line = plan->tile_n * (int)cup_dtype_size(cup__product_y_dtype(p));
    int pieces = rows / 64 * (line / (line % LINE_BYTES ? LINE_BYTES / 2 : LINE_BYTES));
    int fit = (SHARED_MOST - working_bytes(p, plan)) / (plan->consumers * 4 * PIECE_BYTES);
    return fit < 1 ? 1 : fit < pieces ? fit : pieces;
}

int cup__wgmma_shared(const cup__product *p, const cup__wgmma_plan *plan)
{
    return working_bytes(p, plan) + plan->consumers * 4 * PIECE_BYTES * staging_buffers(p, plan);
}

cup__wgmma_cut cup__wgmma_cut_of(const cup__product *p, const cup__wgmma_plan *plan)
{
    cup__wgmma_cut w = {.k_tiles = divide_up(p->k, tile_k(p)),
                        .tiles_m = divide_up(p->m, (int64_t)plan->tile_m * plan->cluster_m),
                        .tiles_n =
                            divide_up(b_columns(p), (int64_t)plan->tile_n * plan->cluster_n)};
    w.tiles = w.tiles_m * w.tiles_n * p->batch_count;
    if (p->groups.kind == PRODUCT_GROUPS_OF_ROWS) /* the most that there can be */
        w.tiles = (p->m / plan->tile_m + p->batch_count) * w.tiles_n;
    w.part_tiles = divide_up(w.k_tiles, plan->parts);
    w.parts = divide_up(w.k_tiles, w.part_tiles);
    return w;
}

/* Rows of tiles walked together, so that what runs at a time covers about a square of y. */
int cup__wgmma_group_of(const cup__wgmma_plan *plan, int multiprocessors)
{
    double rows = sqrt((double)multiprocessors * plan->tile_n / plan->tile_m);
    int group = (int)(rows / plan->cluster_m + 0.5);
    return plan->group ? plan->group : group < 1 ? 1 : group;
}

static int64_t partial_bytes(const cup__wgmma_plan *plan, const cup__wgmma_cut *w)
{
    return w->tiles * plan->cluster_m * plan->cluster_n * w->parts * plan->tile_m * plan->tile_n *
           (int64_t)sizeof(float);
}

/* Whether sums that leave the tensor cores and those of a k-tile of 64 rows fit the registers. */
static bool sums_fit(const cup__wgmma_plan *plan)
{
    int blocks = plan->tile_m / (plan->pingpong ? 1 : plan->consumers) / 64;
    return (blocks + 1) * plan->tile_n / 2 <= (plan->consumers > 2 ? 128 : 192);
}

const char *cup__wgmma_plan_refuses(const cup__product *p, const cup__wgmma_plan *plan)
{
    cup__wgmma_cut w = cup__wgmma_cut_of(p, plan);
    int64_t blocks = (int64_t)plan->cluster_m * plan->cluster_n;
    bool swiglu = p->activation == CUP__SWIGLU;
    if (cup__wgmma_shared(p, plan) > SHARED_MOST)
        return "it needs more shared memory than a block can have";
    if (p->scaling && w.parts > 1 && (p->dtype == CUP_I8 || promotes(p)))
        return "its sums cannot be cut into parts";
    if (p->y_scale && plan->tile_n % 64)
        return "its columns are not whole lines of codes";
    if (p->groups.kind && (w.parts > 1 || blocks > 1 || plan->tile_n % 64))
        return "groups are not cut into parts, nor shared by clusters, nor have they half panels";
    if (promotes(p) && (plan->tile_n % 64 || !sums_fit(plan)))
        return "its columns do not share scales, or its sums do not fit the registers";
    if (swiglu && (plan->tile_n % 128 || plan->cluster_n > 1 || w.parts > 1))
        return "its tiles are not for two halves";
    if (w.parts > 1 && blocks > 1) /* which are not sure to be there all at a time */
        return "clusters are not cut into parts";
    if (w.tiles * w.parts * blocks > INT32_MAX)
        return "there are more than 2^31 tiles";
    if (w.parts > 1 && (partial_bytes(plan, &w) > (int64_t)CUP__WORKSPACE_BYTES ||
                        w.tiles * blocks * plan->consumers > CUP__COUNTERS))
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
                         const cup__wgmma_operand *o, int64_t box_length, int64_t box_lines)
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

/* What lies as y does, or as two matrices of n columns side by side. */
static cup_status encode_result(cup_context *c, const cup__product *p, const void *data,
                                const cup__wgmma_operand *y, const int64_t *box, bool halves,
                                CUtensorMap *map)
{
    cup__wgmma_operand o = *y;
    cup__product two = *p;
    if (halves) {
        o.distance = 2 * p->n;
        o.batch[0] = p->n;
        two.batch_ndim = 1;
        two.batch_size[0] = 2;
    }
    return encode(c, map, &two, data, &o, box[0], box[1]);
}

cup_status cup__wgmma_encode(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                             const cup__wgmma_operand *a, const cup__wgmma_operand *b, bool store,
                             cup__wgmma_maps *to)
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
    cup__wgmma_operand y = {.length = p->n,
                            .lines = p->m,
                            .distance = p->m == 1 ? (p->n + 15) / 16 * 16 : p->y.row,
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

/* Scales of rows that can be copied at once, where there are some for each 128 of k. */
static int scale_vector(const cup__product *p)
{
    if (!p->scaling || p->scaling->kind != PRODUCT_SCALE_BLOCKS)
        return 1;
    const product_scale *a = &p->scaling->a;
    bool together = a->line == 1 && a->shift == 0 && a->k % 4 == 0 && p->m % 4 == 0;
    return together && (uintptr_t)a->data % 16 == 0 ? 4 : 1;
}

static cup__kernel *kernel_of(cup__cuda *gpu, const cup__product *p, const cup__wgmma_plan *plan,
                              const cup__wgmma_operand *a, const cup__wgmma_operand *b, bool store)
{
    cup_dtype y = cup__product_y_dtype(p);
    cup__knob knobs[] = {
        {"CUP_T", p->dtype},
        {"B_T", p->scaling ? p->scaling->b_dtype : p->dtype},
        {"Y_T", y == CUP_I32 ? CUP_F32 : y}, /* which are not looked into */
        {"GROUPS", p->groups.kind},
        {"SCALES", p->scaling ? p->scaling->kind : PRODUCT_SCALE_NONE},
        {"PROMOTE", promotes(p)},
        {"SCALE_VEC", scale_vector(p)},
        {"TILE_M", plan->tile_m},
        {"TILE_N", plan->tile_n},
        {"CONSUMERS", plan->consumers},
        {"PINGPONG", plan->pingpong},
        {"STAGES", plan->stages},
        {"CLUSTER_M", plan->cluster_m},
        {"CLUSTER_N", plan->cluster_n},
        {"A_ALONG", a->along},
        {"B_ALONG", b->along},
        {"BATCH", p->batch_ndim},
        {"HAS_BIAS", p->bias != NULL},
        {"HAS_PRE", p->pre != NULL},
        {"ACTIVATION", p->activation},
        {"OTHER", p->kind},
        {"DROPOUT", p->dropping != NULL},
        {"FACTOR", p->factor != 1},
        {"PARTS", plan->parts > 1},
        {"Y_DIRECT", !store},
        {"STAGING_BUFFERS", staging_buffers(p, plan)},
        {"WATCHDOG", plan->watchdog},
    };
    return cup__kernel_get(gpu, "matmul_sm90.cu", "matmul_sm90", knobs,
                           sizeof knobs / sizeof *knobs);
}

static void fill_call(wgmma_call *to, const cup__product *p, const cup__wgmma_operand *a,
                      const cup__wgmma_operand *b, const cup__wgmma_cut *w)
{
    memset(to, 0, sizeof *to);
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->other = p->other;
    if (p->dropping) {
        to->random = (const unsigned long long *)(const void *)p->dropping->random;
        to->mask = p->dropping->mask;
        to->threshold = p->dropping->threshold;
        to->sequence = p->dropping->sequence;
        to->kept = p->dropping->kept;
    }
    to->y_scale = p->y_scale;
    to->y_most = p->y_most;
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

cup_status cup__product_wgmma_by(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__wgmma_operand a, b;
    cup__wgmma_operands(p, &a, &b);
    cup__wgmma_cut w = cup__wgmma_cut_of(p, plan);
    bool store = cup__wgmma_can_store(p);
    cup__wgmma_maps map;
    CUP_TRY(cup__wgmma_encode(c, p, plan, &a, &b, store, &map));
    wgmma_call argument;
    fill_call(&argument, p, &a, &b, &w);
    argument.group = cup__wgmma_group_of(plan, cup__cuda_facts(gpu)->multiprocessors);
    if (w.parts > 1) {
        cup__product_state *state = cup__product_state_of(c);
        if (!state)
            return c->error.status;
        argument.partial = state->workspace;
        argument.arrived = state->counters;
    }
    cup__kernel *kernel = kernel_of(gpu, p, plan, &a, &b, store);
    if (!kernel)
        return c->error.status;
    int64_t blocks = (int64_t)plan->cluster_m * plan->cluster_n;
    int64_t most = cup__cuda_facts(gpu)->multiprocessors / blocks;
    int64_t units = argument.units;
    cup__grid grid = {
        .x = (units < most ? units : most) * blocks,
        .threads = 128 * (plan->consumers + 1),
        .shared = cup__wgmma_shared(p, plan),
        .cluster = (int)blocks,
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(map.a), CUP__ARG(map.b), CUP__ARG(map.y),
                       CUP__ARG(map.pre), CUP__ARG(argument));
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
