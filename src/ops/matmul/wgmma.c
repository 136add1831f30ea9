#include "ops/matmul/wgmma.h"

#include <math.h>
#include <string.h>

#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/memo.h"
#include "kernels/product_call.cuh"
#include "kernels/wgmma_call.cuh"
#include "ops/lowbit/weight_only_skinny.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/product_state.h"
#include "ops/matmul/wgmma_maps.h"

#define SHORT_ROWS 64 /* of products that are bound by their weights, whichever their tiles */
#define PIECE_BYTES 2048 /* of a result, at most, that a warp hands to TMA at a time */

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
    if (cup__product_is_empty(p))
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
    if (p->summing && (a.along != PRODUCT_ALONG_MN || p->batch_ndim || p->scaling))
        return "it sums the lines of one matrix that lies along m";
    bool whole = cup__wgmma_can_store(p) && (uintptr_t)p->other % 16 == 0;
    if (p->dropping && p->batch_ndim)
        return "it drops elements of one matrix";
    if (p->kind == PRODUCT_SWIGLU_GRAD && p->batch_ndim)
        return "it takes the way back through swiglu of one matrix";
    if ((p->kind || p->adding || p->dropping || p->activation == PRODUCT_SWIGLU) && !whole)
        return "the lines of the result do not start at multiples of 16 bytes";
    if (p->activation == PRODUCT_SWIGLU && (b.along != PRODUCT_ALONG_K || p->batch_ndim))
        return "it takes swiglu of one matrix, and weights whose k lies together";
    return NULL;
}

bool cup__wgmma_promotes(const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    return s && (s->kind == PRODUCT_SCALE_BLOCKS || (p->dtype != CUP_I8 && !s->fast));
}

/* Of a tile of the matrix that lies as y does. */
static int other_bytes(const cup__product *p, const cup__wgmma_plan *plan)
{
    int tile = plan->tile_m * plan->tile_n * (int)cup_dtype_size(cup__product_y_dtype(p));
    return p->kind == PRODUCT_SWIGLU_GRAD ? 2 * tile : p->kind ? tile : 0;
}

/* Shared memory without that for results on their way, and with one tile of the other matrix. */
static int working_bytes(const cup__product *p, const cup__wgmma_plan *plan)
{
    int stage = (plan->tile_m + (plan->tile_n + 63) / 64 * 64) * CUP__WGMMA_LINE;
    int kind = p->scaling ? p->scaling->kind : PRODUCT_SCALE_NONE;
    int bias = plan->consumers * plan->tile_n * (int)sizeof(float);
    int scales = kind == PRODUCT_SCALE_BLOCKS  ? plan->stages * (plan->tile_m + 32) * 4
                 : kind == PRODUCT_SCALE_LINES ? plan->consumers * plan->tile_n * 4
                                               : 0;
    int tiles = plan->stages * stage + other_bytes(p, plan);
    return tiles + (p->bias ? bias : 0) + scales + 16 * plan->stages + 32;
}

/* Where sums leave the tensor cores the kernel stores results without TMA, from smaller pieces. */
static int piece_bytes(const cup__product *p)
{
    return cup__wgmma_promotes(p) && !p->groups.kind ? PIECE_BYTES / 2 : PIECE_BYTES;
}

/* What is left beside the working memory and so many pieces for each warp. */
static int left_bytes(const cup__product *p, const cup__wgmma_plan *plan, int pieces)
{
    return CUP__WGMMA_SHARED - working_bytes(p, plan) -
           plan->consumers * 4 * pieces * piece_bytes(p);
}

/* With two tiles of the other matrix, one comes while the other is read. */
int cup__wgmma_other_buffers(const cup__product *p, const cup__wgmma_plan *plan)
{
    int pieces = plan->consumers == 3 ? 1 : 2;
    return p->kind && left_bytes(p, plan, pieces) >= other_bytes(p, plan) ? 2 : 1;
}

/* Pieces of 16 lines that each warp can have on their way: a warp waits for the last but so many,
 * and the copies of stages come first. */
int cup__wgmma_staging(const cup__product *p, const cup__wgmma_plan *plan)
{
    if (cup__wgmma_promotes(p))
        return left_bytes(p, plan, 2) < 0 ? 1 : 2;
    if (plan->consumers == 3)
        return 1;
    int more = (cup__wgmma_other_buffers(p, plan) - 1) * other_bytes(p, plan);
    return left_bytes(p, plan, 4) >= more ? 4 : 2;
}

int cup__wgmma_shared(const cup__product *p, const cup__wgmma_plan *plan)
{
    return CUP__WGMMA_SHARED - left_bytes(p, plan, cup__wgmma_staging(p, plan)) +
           (cup__wgmma_other_buffers(p, plan) - 1) * other_bytes(p, plan);
}

cup__wgmma_cut cup__wgmma_cut_of(const cup__product *p, const cup__wgmma_plan *plan)
{
    cup__wgmma_cut w = {.k_tiles = divide_up(p->k, cup__wgmma_tile_k(p)),
                        .tiles_m = divide_up(p->m, (int64_t)plan->tile_m * plan->cluster_m),
                        .tiles_n = divide_up(cup__wgmma_columns(p),
                                             (int64_t)plan->tile_n * plan->cluster_n)};
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

/* Blocks whose parts of k meet in memory; the bytes of their sums, and counters of who has come. */
static int64_t meeting(const cup__wgmma_plan *plan, const cup__wgmma_cut *w)
{
    return w->parts > 1 && !plan->cluster_k ? w->tiles * plan->cluster_m * plan->cluster_n : 0;
}

static int64_t partial_bytes(const cup__wgmma_plan *plan, const cup__wgmma_cut *w)
{
    return meeting(plan, w) * w->parts * plan->tile_m * plan->tile_n * (int64_t)sizeof(float);
}

/* Of the shares in the sums of a's lines, of which there are so many with those of empty rows. */
static int64_t summed_lines(const cup__product *p, const cup__wgmma_plan *plan,
                            const cup__wgmma_cut *w)
{
    return p->summing ? w->tiles_m * plan->cluster_m * plan->tile_m : 0;
}

static int64_t share_bytes(const cup__product *p, const cup__wgmma_plan *plan,
                           const cup__wgmma_cut *w)
{
    return summed_lines(p, plan, w) * w->tiles_n * w->parts * (int64_t)sizeof(float);
}

/* Whether the parts of a tile can meet in the memory of a cluster's stages. */
static bool can_meet(const cup__product *p, const cup__wgmma_plan *plan,
                     const cup__wgmma_cut *w)
{
    int size = (int)cup_dtype_size(cup__product_y_dtype(p));
    int columns = (int)cup__wgmma_stored_line(plan->tile_n * size) / size;
    int rows = plan->tile_m / plan->consumers, chunks = rows / 64 * plan->tile_n / columns;
    int each = (chunks + plan->cluster_k - 1) / plan->cluster_k * plan->cluster_k;
    int stage = (plan->tile_m + plan->tile_n) * CUP__WGMMA_LINE;
    return w->parts == plan->cluster_k && !plan->pingpong && !p->groups.kind && !p->scaling &&
           each * plan->consumers * 64 * columns * 4 <= plan->stages * stage;
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
    bool swiglu = p->activation == PRODUCT_SWIGLU;
    if (p->summing && (plan->tile_m > 192 || plan->cluster_n > 1))
        return "its tiles of a have no warp for each panel, or are shared";
    if (cup__wgmma_shared(p, plan) > CUP__WGMMA_SHARED)
        return "it needs more shared memory than a block can have";
    if (p->scaling && w.parts > 1 && p->dtype == CUP_I8)
        return "its sums cannot be cut into parts";
    if (p->y_scale && plan->tile_n % 64)
        return "its columns are not whole lines of codes";
    if (p->measuring && !cup__wgmma_measures(plan))
        return "its sums leave no registers for moments";
    if (p->groups.kind && (w.parts > 1 || blocks > 1 || plan->tile_n % 64))
        return "groups are not cut into parts, nor shared by clusters, nor have they half panels";
    if (cup__wgmma_promotes(p) && (plan->tile_n % 64 || !sums_fit(plan)))
        return "its columns do not share scales, or its sums do not fit the registers";
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

/* Scales of rows that can be copied at once, where there are some for each 128 of k. */
static int scale_vector(const cup__product *p)
{
    if (!p->scaling || p->scaling->kind != PRODUCT_SCALE_BLOCKS)
        return 1;
    const product_scale *a = &p->scaling->a;
    bool together = a->line == 1 && a->shift == 0 && a->k % 4 == 0 && p->m % 4 == 0 &&
                    !p->groups.kind; /* which begin at any row */
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
        {"PROMOTE", cup__wgmma_promotes(p)},
        {"SCALE_VEC", scale_vector(p)},
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
        {"OTHER_BUFFERS", cup__wgmma_other_buffers(p, plan)},
        {"DROPOUT", p->dropping != NULL},
        {"FACTOR", p->factor != 1},
        {"PARTS", plan->parts > 1},
        {"ADDING", p->adding},
        {"SUM_A", p->summing},
        {"Y_DIRECT", !store},
        {"STAGING_BUFFERS", cup__wgmma_staging(p, plan)},
        {"WATCHDOG", plan->watchdog},
        {"MOMENTS", true},
    };
    return cup__kernel_get(gpu, "wgmma.cu", "matmul_sm90", knobs,
                           sizeof knobs / sizeof *knobs - !p->moments);
}

static void fill_call(wgmma_call *to, const cup__product *p, const cup__wgmma_operand *a,
                      const cup__wgmma_operand *b, const cup__wgmma_cut *w)
{
    memset(to, 0, sizeof *to);
    to->bias = p->bias;
    to->y = p->y.data;
    to->pre = p->pre;
    to->a_sums = p->a_sums;
    to->other = p->other;
    if (p->dropping) {
        to->random = (const unsigned long long *)(const void *)p->dropping->random;
        to->mask = p->dropping->mask;
        to->threshold = p->dropping->threshold;
        to->threshold_rest = p->dropping->rest;
        to->sequence = p->dropping->sequence;
        to->kept = p->dropping->kept;
    }
    to->y_scale = p->y_scale;
    to->y_most = p->y_most;
    to->moments = p->moments;
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

/* A launch as it is kept for equal calls; without a kernel where only the plan is. */
typedef struct launch {
    cup__wgmma_plan plan;
    cup__kernel *kernel;
    cup__grid grid;
    bool store;
    int kind;
    wgmma_call argument;
    cup__wgmma_maps map;
    const void *aimed[4]; /* where the maps begin: a, b, y, and pre or the other matrix */
} launch;

/* What lies as the result does, and is read or written by a map. */
static const void *beside(const cup__product *p)
{
    return p->kind ? p->other : p->pre;
}

static const char owner; /* of what is kept here */

static cup_status describe(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                           launch *l)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__wgmma_operand a, b;
    cup__wgmma_operands(p, &a, &b);
    cup__wgmma_cut w = cup__wgmma_cut_of(p, plan);
    l->plan = *plan;
    l->kind = p->kind;
    l->store = cup__wgmma_can_store(p);
    CUP_TRY(cup__wgmma_encode(c, p, plan, &a, &b, l->store, &l->map));
    fill_call(&l->argument, p, &a, &b, &w);
    l->argument.group = cup__wgmma_group_of(plan, cup__cuda_facts(gpu)->multiprocessors);
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
        .shared = cup__wgmma_shared(p, plan),
        .cluster = plan->cluster_k ? plan->cluster_k : (int)blocks,
        .waits = l->argument.arrived != NULL,
        .dependent = all || p->m <= SHORT_ROWS,
    };
    const void *at[4] = {p->a.data, p->b.data, p->y.data, beside(p)};
    memcpy(l->aimed, at, sizeof at);
    return CUP_OK;
}

static bool aim_map(CUtensorMap *map, const void **aimed, const void *at)
{
    if (*aimed == at)
        return true;
    *aimed = at;
    return cup__driver.cuTensorMapReplaceAddress(map, (void *)(uintptr_t)at) == CUDA_SUCCESS;
}

/* Aims a launch that was described for an equal product at this one's memory. */
static bool aim(launch *l, const cup__product *p)
{
    l->argument.bias = p->bias;
    l->argument.y = p->y.data;
    l->argument.pre = p->pre;
    l->argument.a_sums = p->a_sums;
    l->argument.other = p->other;
    return cup__driver.cuTensorMapReplaceAddress &&
           aim_map(&l->map.a, &l->aimed[0], p->a.data) &&
           aim_map(&l->map.b, &l->aimed[1], p->b.data) &&
           (!l->store || aim_map(&l->map.y, &l->aimed[2], p->y.data)) &&
           (!l->store || !beside(p) || aim_map(&l->map.pre, &l->aimed[3], beside(p)));
}

static cup_status start(cup_context *c, launch *l)
{
    return cup__launch(cup__cuda_of(c->device), l->kernel, l->grid, CUP__ARG(l->map.a),
                       CUP__ARG(l->map.b), CUP__ARG(l->map.y), CUP__ARG(l->map.pre),
                       CUP__ARG(l->argument));
}

static cup_status again(cup__call *call, cup__memo *memo)
{
    launch *l = memo->kept;
    if (call->c->moments.wanted) /* which this launch does not make */
        return memo->impl->run(call);
    cup__product p; /* of which only what lies where is looked at */
    p.kind = l->kind;
    p.a_sums = NULL;
    cup__product_point(call, call->in, &p);
    if (aim(l, &p))
        return start(call->c, l);
    memo->again = NULL;
    return memo->impl->run(call);
}

cup_status cup__product_wgmma_by(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan)
{
    launch l = {0};
    CUP_TRY(describe(c, p, plan, &l));
    return start(c, &l);
}

/* The launch that is kept for the call; NULL where there is none, or of something else. */
static launch *kept_of(const cup__call *call)
{
    const cup__memo *memo = call->memo;
    return memo && memo->owner == (const void *)&owner ? memo->kept : NULL;
}

cup_status cup__product_wgmma_kept(cup__call *call, const cup__product *p,
                                   const cup__wgmma_plan *plan)
{
    launch made = {0}, *l = kept_of(call);
    cup__product with = *p;
    with.moments = cup__wgmma_moments(call->c, p, plan);
    /* Of what else a launch points at nothing says where it is the next time. */
    bool keeps = call->memo && !p->scaling && !p->groups.kind && !p->dropping && !p->y_scale &&
                 !with.moments;
    made.plan = *plan;
    if (!keeps && call->memo && !l)
        cup__memo_keep(call->memo, &owner, &made, sizeof made);
    if (!keeps)
        return cup__product_wgmma_by(call->c, &with, plan);
    if (l && l->kernel && !memcmp(&l->plan, plan, sizeof *plan) && aim(l, p))
        return start(call->c, l);
    CUP_TRY(describe(call->c, p, plan, &made));
    l = cup__memo_keep(call->memo, &owner, &made, sizeof made);
    if (l && call->op->epilogue)
        call->memo->again = again;
    return start(call->c, l ? l : &made);
}

const char *cup__product_wgmma_menu_refuses(cup_context *c, const cup__product *p)
{
    cup__wgmma_plan plan;
    const char *why = cup__product_wgmma_refuses(c, p);
    if (why)
        return why;
    cup__product_choice(c, p, &plan);
    return plan.parts < 1 ? "no shape of tiles fits this product" : NULL;
}

cup_status cup__product_wgmma(cup__call *call, const cup__product *p)
{
    const launch *l = kept_of(call);
    cup__wgmma_plan plan;
    if (l)
        plan = l->plan;
    else
        cup__product_choice(call->c, p, &plan);
    if (plan.parts < 1)
        return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this product");
    return cup__product_wgmma_kept(call, p, &plan);
}

const char *cup__product_wgmma_best_refuses(cup_context *c, const cup__product *p)
{
    const char *why = cup__product_wgmma_menu_refuses(c, p);
    if (why)
        return why;
    cup__wgmma_plan plan;
    /* Of activations in 16 bits the library has none, and what is for a handful of rows comes
     * before this. */
    if (p->activation && p->m > CUP__ROWS_STREAM_BEST)
        return NULL;
    return cup__product_choice(c, p, &plan) ? NULL : "cuBLASLt is likely to be faster";
}
