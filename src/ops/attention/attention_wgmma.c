/* Plans, tensor maps and launches of attention_wgmma.cu, attention_wgmma_queries.cu and
 * attention_wgmma_keys.cu. */
#include "ops/attention/attention_wgmma.h"

#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "ops/matmul/product_state.h"

#define ROWS 128         /* of a block of backward */
#define BARRIER_BYTES 16 /* of a stage of one ring */
#define QUEUE_BYTES 24   /* of the tiles that are given out, see units.cuh */
#define SHORT_MOST 768   /* keys that a query sees by a short list of blocks of 128 */

static int64_t padded(const cup__attention *a)
{
    return (a->size + 63) / 64 * 64;
}

static const char *refuses(const cup__attention *a, int64_t size_most)
{
    if (cup__cuda_facts(cup__cuda_of(a->c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    if (!cup__driver.cuTensorMapEncodeTiled)
        return "the driver is too old for tensor maps";
    if (a->dtype != CUP_F16 && a->dtype != CUP_BF16)
        return "it takes f16 and bf16";
    if (a->size % 8 || a->size > size_most)
        return size_most == 128 ? "the size of a head must be a multiple of 8 up to 128"
                                : "the size of a head must be a multiple of 8 up to 256";
    if (a->scale < 0)
        return "the scale is negative";
    if (!cup__attention_is_any(a))
        return "there are no queries or no keys";
    return a->queries > CUP__POSITIONS_MOST || a->keys > CUP__POSITIONS_MOST
               ? "there are over 2^30 positions"
               : NULL;
}

const char *cup__hopper_refuses(const cup__attention *a)
{
    return refuses(a, 256);
}

const char *cup__hopper_grad_refuses(const cup__attention *a)
{
    if (a->lists.given)
        return "it knows of no lists of blocks of keys";
    if (a->score.formula && a->score.formula->by_score & (a->row_grads | a->pair_grads))
        return "the derivatives of the formula by its tensors have the score in them";
    return refuses(a, 128);
}

const char *cup__attention_hopper_refuses(const cup__call *call)
{
    cup__attention a = cup__attention_of(call);
    return cup__hopper_refuses(&a);
}

const char *cup__attention_hopper_grad_refuses(const cup__call *call)
{
    cup__attention a = cup__attention_of(call);
    return cup__hopper_grad_refuses(&a);
}

/* Whether two neighbouring keys of a bias, and of its gradient, are one aligned word. */
static bool lies_in_pairs(const cup_tensor *t, const int64_t *stride)
{
    return stride[3] == 1 && (uintptr_t)t->data % 4 == 0 && stride[0] % 2 == 0 &&
           stride[1] % 2 == 0 && stride[2] % 2 == 0;
}

/* The bias, or the tensor of a formula that is loaded as one; NULL: neither. */
static const cup_tensor *bias_of(const cup__attention *a, const int64_t **stride)
{
    int ahead = cup__attention_ahead(a);
    *stride = ahead < 0 ? a->score.bias_stride : a->score.tensor[ahead].stride;
    return ahead < 0 ? a->score.bias : a->score.tensor[ahead].tensor;
}

static bool bias_lies_in_pairs(const cup__attention *a)
{
    const int64_t *stride;
    const cup_tensor *bias = bias_of(a, &stride), *back = a->d_pairs ? a->d_pairs : a->d_bias;
    if (a->keys % 2 || (!bias && !a->d_pairs) || (bias && !lies_in_pairs(bias, stride)))
        return false;
    return !back || lies_in_pairs(back, back->stride + (back->ndim - 4));
}

/* Whether a bias is read key by key. */
static bool bias_is_single(const cup__attention *a)
{
    const int64_t *stride;
    return bias_of(a, &stride) && !bias_lies_in_pairs(a);
}

/* Three warpgroups do more work on each key that is read, unless their tiles of 192 queries leave
 * an eighth more rows empty, or dropout or a bias needs more registers than three have. */
static int forward_warpgroups(const cup__attention *a)
{
    int64_t by_two = cup__attention_tiles(a->queries, 128) * 128;
    int64_t by_three = cup__attention_tiles(a->queries, 192) * 192;
    bool fits = a->dropout == 0 && !a->score.bias && !cup__score_varies(&a->score, 3);
    fits = fits && !a->lists.given; /* whose blocks do not fill 192 queries */
    return padded(a) == 64 && fits && by_three <= by_two + by_two / 8 ? 3 : 2;
}

static int widest_step(const cup__attention *a)
{
    bool plain = !a->mask.causal && !a->mask.window && !a->score.changed;
    bool single = bias_is_single(a); /* addresses take registers */
    switch (padded(a)) {
    case 64:
        return single ? 80 : 128;
    case 128:
        return single ? 80 : a->dropout > 0 ? 112 : plain ? 176 : 128;
    case 192:
        return a->dropout > 0 ? 64 : single ? 80 : 96;
    default:
        return a->dropout > 0 ? 48 : 80;
    }
}

/* With lists of blocks a power of two, so that tiles and blocks end together, and no more than a
 * block where tensor cores are busy with less. */
static int forward_step(const cup__attention *a)
{
    int widest = widest_step(a), step = 32;
    if (!a->lists.given)
        return widest;
    if (padded(a) > 128 && bias_is_single(a))
        return step; /* wider ones take more registers than there are */
    while (2 * step <= widest && step < (a->lists.size > 64 ? a->lists.size : 64))
        step *= 2;
    return step;
}

/* Whether tiles of 64 queries, several on a multiprocessor, do better: where blocks are that small,
 * or so few that what begins and ends a tile takes longer than its products; and where there are
 * registers. */
static bool is_short(const cup__attention *a)
{
    const cup_tensor *given = a->lists.given;
    if (!given || a->dropout > 0 || a->score.changed || padded(a) > 128)
        return false;
    return a->lists.size <= 64 || (a->lists.size == 128 && padded(a) == 64 &&
                                   given->shape[3] <= SHORT_MOST / 128);
}

/* Of backward's kernel of rows of queries. */
static int queries_step(const cup__attention *a)
{
    if (padded(a) == 64)
        return a->score.changed ? 64 : 128;
    if (a->score.changed)
        return a->dropout > 0 ? 32 : 64;
    return a->dropout > 0 ? 64 : 96;
}

/* Whether wide steps would leave too few registers in backward's kernel of rows of keys. */
static bool keys_are_tight(const cup__attention *a)
{
    const cup__attention_score *s = &a->score;
    int ahead = cup__attention_ahead(a);
    bool bias = s->bias || ahead >= 0;
    uint32_t varies = cup__score_varies(s, 2) | cup__score_varies(s, 3);
    varies &= ahead < 0 ? varies : ~(1u << ahead);
    return a->dropout > 0 || s->soft_cap > 0 || (bias && (s->slopes || a->mask.window)) ||
           (s->formula && (s->formula->sloped || varies));
}

cup__hopper_plan cup__hopper_choose(cup__hopper_kernel kernel, const cup__attention *a)
{
    cup__hopper_plan plan = {.warpgroups = 2, .stages = 2, .blocks = 1, .order = 1};
    if (kernel == CUP__HOPPER_FORWARD && is_short(a)) {
        plan = (cup__hopper_plan){
            .warpgroups = 1, .step = 64, .stages = 2, .blocks = padded(a) == 64 ? 3 : 2};
    } else if (kernel == CUP__HOPPER_FORWARD) {
        plan.warpgroups = forward_warpgroups(a);
        plan.step = forward_step(a);
        plan.stages = plan.warpgroups == 3 ? 3 : 2;
    } else if (kernel == CUP__HOPPER_QUERIES) {
        plan.step = queries_step(a);
    } else {
        plan.step = padded(a) == 128 && keys_are_tight(a) ? 32 : 64;
        plan.stages = 3;
    }
    return plan;
}

int64_t cup__hopper_bytes(cup__hopper_kernel kernel, const cup__hopper_plan *plan, int64_t size)
{
    bool ahead = kernel == CUP__HOPPER_FORWARD && plan->stages > 2; /* queries of the next tile */
    const int64_t held[] = {1 + ahead, 3, 2};                       /* tiles of rows */
    int64_t rows = 64 * plan->warpgroups * held[kernel], walked = 2 * plan->stages * plan->step;
    int64_t numbers = kernel == CUP__HOPPER_KEYS ? plan->stages * plan->step * 8 : 0;
    return (rows + walked) * size * 2 + numbers + BARRIER_BYTES * (2 * plan->stages + 1 + ahead);
}

/* A tensor map over heads: boxes of 64 features of some positions. */
static cup_status encode(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                         int64_t heads, int64_t positions, int64_t box_positions)
{
    int64_t size = cup_dtype_size(a->dtype);
    cup__boxes boxes = {.data = (char *)h->tensor->data + h->offset * size, .dtype = a->dtype,
                        .ndim = 4, .size = {a->size, positions, heads, a->batch},
                        .box = {64, box_positions}};
    /* A dimension of one element may have any stride; the driver wants a usable one. */
    for (int i = 1; i < 4; i++)
        boxes.stride[i] =
            (boxes.size[i] == 1 ? (a->size + 7) / 8 * 8 : h->stride[3 - i]) * size;
    return cup__tensor_map_make(cup__cuda_of(a->c->device), &boxes, map);
}

cup_status cup__hopper_map_queries(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                                   int64_t box_positions)
{
    return encode(a, map, h, a->heads, a->queries, box_positions);
}

cup_status cup__hopper_map_keys(const cup__attention *a, CUtensorMap *map, const cup__heads *h,
                                int64_t box_positions)
{
    return encode(a, map, h, a->kv_heads, a->keys, box_positions);
}

/* Tiles of rows of all heads. */
static int64_t tiles_of(const cup__attention *a, int64_t positions, int64_t rows, int64_t heads)
{
    return cup__attention_tiles(positions, rows) * a->batch * heads;
}

/* Where causality makes tiles unequal two make a unit. */
static int64_t pairs_of(const cup__attention *a, int64_t positions, int64_t rows, int64_t heads)
{
    return (cup__attention_tiles(positions, rows) + 1) / 2 * a->batch * heads;
}

/* Whether blocks take the next tile when they are done with one, as units.cuh says: where a formula
 * skips, and forward where so many blocks would be without a pair in the last round that it takes
 * over a sixteenth more, or where three warpgroups, which leave out keys each for itself, make
 * pairs unequal. */
static bool is_queued(const cup__attention *a, cup__hopper_kernel which,
                      const cup__hopper_plan *plan)
{
    if (a->score.formula)
        return a->score.formula->sees && !a->ranges[0];
    if (which != CUP__HOPPER_FORWARD || !a->mask.causal || a->mask.window || a->lists.given ||
        a->ranges[0])
        return false;
    int64_t pairs = pairs_of(a, a->queries, 64 * plan->warpgroups, a->heads);
    int64_t at_once = cup__cuda_facts(cup__cuda_of(a->c->device))->multiprocessors;
    int64_t rounds = (pairs + at_once - 1) / at_once;
    return rounds > 1 && (plan->warpgroups == 3 || 16 * rounds * at_once > 17 * pairs);
}

static cup_status call_of(const cup__attention *a, cup__hopper_kernel which,
                          const cup__hopper_plan *plan, attention_call *call)
{
    *call = cup__attention_call_of(a);
    if (!is_queued(a, which, plan))
        return CUP_OK;
    cup__product_state *state = cup__product_state_of(a->c);
    call->queue = state ? state->counters : NULL;
    return a->c->error.status;
}

/* The units that the blocks of a kernel share. */
static int64_t units_of(const cup__attention *a, cup__hopper_kernel which,
                        const cup__hopper_plan *plan)
{
    int64_t positions = which == CUP__HOPPER_KEYS ? a->keys : a->queries;
    int64_t heads = which == CUP__HOPPER_KEYS ? a->kv_heads : a->heads;
    int64_t rows = 64 * plan->warpgroups;
    return a->mask.causal && !is_queued(a, which, plan) ? pairs_of(a, positions, rows, heads)
                                                        : tiles_of(a, positions, rows, heads);
}

/* The kernel of a plan, and the grid that goes with it. */
static cup__kernel *kernel_of(const cup__attention *a, cup__hopper_kernel which,
                              const cup__hopper_plan *plan, cup__grid *grid)
{
    static const char *const files[] = {"attention_wgmma.cu", "attention_wgmma_queries.cu",
                                        "attention_wgmma_keys.cu"};
    static const char *const entries[] = {"attention_sm90_fwd", "attention_sm90_queries",
                                          "attention_sm90_keys"};
    cup__knob knobs[] = {
        {"CUP_T", a->dtype},          {"SIZE", padded(a)},
        {"STEP", plan->step},         {"STAGES", plan->stages},
        {"CAUSAL", a->mask.causal},       {"DROPOUT", a->dropout > 0},
        {"WATCHDOG", plan->watchdog}, {"WARPGROUPS", plan->warpgroups},
        {"ORDER", plan->order},
    };
    int count = which == CUP__HOPPER_FORWARD ? 9 : 7;
    int64_t most = plan->blocks * cup__cuda_facts(cup__cuda_of(a->c->device))->multiprocessors;
    int64_t units = units_of(a, which, plan);
    bool queued = is_queued(a, which, plan);
    *grid = (cup__grid){
        .x = units < most ? units : most,
        .threads = 128 * (plan->warpgroups + 1),
        .shared = (int)cup__hopper_bytes(which, plan, padded(a)) + (queued ? QUEUE_BYTES : 0),
    };
    cup__knob all[CUP__ATTENTION_KNOBS];
    count = cup__attention_knobs(a, knobs, count, all);
    if (plan->blocks > 1)
        all[count++] = (cup__knob){"BLOCKS", plan->blocks};
    if (queued && !a->score.formula) /* which says so itself */
        all[count++] = (cup__knob){"QUEUED", 1};
    if (bias_lies_in_pairs(a))
        all[count++] = (cup__knob){"BIAS_PAIRS", 1};
    if (cup__attention_ahead(a) >= 0)
        all[count++] = (cup__knob){"AHEAD", 1 + cup__attention_ahead(a)};
    return cup__attention_kernel_get(a, files[which], entries[which], all, count);
}

cup_status cup__attention_hopper_by(cup__attention *a, const cup__hopper_plan *plan)
{
    CUtensorMap q, k, v;
    CUP_TRY(cup__hopper_map_queries(a, &q, &a->q, 64));
    CUP_TRY(cup__hopper_map_keys(a, &k, &a->k, plan->step));
    CUP_TRY(cup__hopper_map_keys(a, &v, &a->v, plan->step));
    attention_call argument;
    CUP_TRY(call_of(a, CUP__HOPPER_FORWARD, plan, &argument));
    cup__grid grid;
    cup__kernel *kernel = kernel_of(a, CUP__HOPPER_FORWARD, plan, &grid);
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, CUP__ARG(q), CUP__ARG(k),
                       CUP__ARG(v), cup__attention_argument(a, &argument));
}

static cup_status run_queries(cup__attention *a, const cup__hopper_plan *plan,
                              const attention_call *argument)
{
    CUtensorMap q, k, v, o, d_o;
    CUP_TRY(cup__hopper_map_queries(a, &q, &a->q, 64));
    CUP_TRY(cup__hopper_map_keys(a, &k, &a->k, plan->step));
    CUP_TRY(cup__hopper_map_keys(a, &v, &a->v, plan->step));
    CUP_TRY(cup__hopper_map_queries(a, &o, &a->o, 64));
    CUP_TRY(cup__hopper_map_queries(a, &d_o, &a->d_o, 64));
    cup__grid grid;
    cup__kernel *kernel = kernel_of(a, CUP__HOPPER_QUERIES, plan, &grid);
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, CUP__ARG(q), CUP__ARG(k),
                       CUP__ARG(v), CUP__ARG(o), CUP__ARG(d_o),
                       cup__attention_argument(a, argument));
}

static cup_status run_keys(cup__attention *a, const cup__hopper_plan *plan,
                           const attention_call *argument)
{
    CUtensorMap q, k, v, d_o;
    CUP_TRY(cup__hopper_map_queries(a, &q, &a->q, plan->step));
    CUP_TRY(cup__hopper_map_keys(a, &k, &a->k, 64));
    CUP_TRY(cup__hopper_map_keys(a, &v, &a->v, 64));
    CUP_TRY(cup__hopper_map_queries(a, &d_o, &a->d_o, plan->step));
    cup__grid grid;
    cup__kernel *kernel = kernel_of(a, CUP__HOPPER_KEYS, plan, &grid);
    if (!kernel)
        return a->c->error.status;
    return cup__launch(cup__cuda_of(a->c->device), kernel, grid, CUP__ARG(q), CUP__ARG(k),
                       CUP__ARG(v), CUP__ARG(d_o), cup__attention_argument(a, argument));
}

cup_status cup__attention_hopper_grad_by(cup__attention *a, const cup__hopper_plan *queries,
                                         const cup__hopper_plan *keys)
{
    attention_call argument;
    CUP_TRY(call_of(a, CUP__HOPPER_QUERIES, queries, &argument));
    int64_t rows = a->batch * a->heads * cup__attention_tiles(a->queries, ROWS) * ROWS;
    cup_tensor *space = cup__attention_numbers(a, CUP_F32, 2 * rows);
    if (!space)
        return a->c->error.status;
    argument.delta = space->data;
    argument.lse_log2 = (float *)space->data + rows;
    cup_status status = run_queries(a, queries, &argument);
    if (status == CUP_OK)
        status = run_keys(a, keys, &argument);
    cup_tensor_free(space);
    return status;
}

static cup_status forward(cup__attention *a)
{
    cup__hopper_plan plan = cup__hopper_choose(CUP__HOPPER_FORWARD, a);
    return cup__attention_hopper_by(a, &plan);
}

static cup_status backward(cup__attention *a)
{
    cup__hopper_plan queries = cup__hopper_choose(CUP__HOPPER_QUERIES, a);
    cup__hopper_plan keys = cup__hopper_choose(CUP__HOPPER_KEYS, a);
    return cup__attention_hopper_grad_by(a, &queries, &keys);
}

cup_status cup__attention_hopper(cup__attention *a)
{
    return cup__attention_with_copies(a, forward);
}

cup_status cup__attention_hopper_grad(cup__attention *a)
{
    return cup__attention_with_copies(a, backward);
}
