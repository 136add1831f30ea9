#include "ops/lowbit/weight_only_skinny.h"

#include "base/divide.h"
#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/matmul/product_state.h"

#define TILES 4
#define STAGES 3
#define ROWS (16 * TILES)
#define WARPS 8

bool cup__rows_packed_can(cup_context *c, cup_dtype dtype)
{
    return (dtype == CUP_BF16 || dtype == CUP_F16) &&
           cup__cuda_facts(cup__cuda_of(c->device))->major >= 8;
}

#define STREAM_WARPS 8
#define SHARED_MOST 232000 /* bytes of a multiprocessor that blocks can have */
#define PIECE 64           /* bytes of a row that a warp multiplies at a time */
#define UNIT 16            /* rows of weights */
#define X_REGISTERS 64     /* that hold rows of x, */
#define X_BYTES 131072     /* or of shared memory that do */
#define RING_LEAST 3       /* stages */
#define CLUSTER_MOST 2     /* larger ones wait for places */
#define CLUSTER_COST 16384 /* in bytes of weights */

int cup__shift_of(int64_t x)
{
    int shift = 0;
    while (shift < 31 && INT64_C(1) << shift < x)
        shift++;
    return INT64_C(1) << shift == x ? shift : -1;
}

static int octets_of(int64_t m)
{
    return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8;
}

/* How many chunks of x a block holds, and where; 0: none. */
static int64_t held_of(int64_t part, int64_t m, int bits, const cup__stream_plan *plan,
                       bool *shared)
{
    int64_t chunk = plan->warps * plan->pieces * PIECE, chunks = divide_up(part, chunk);
    int64_t registers = chunks * plan->pieces * (PIECE / bits) * octets_of(m);
    int64_t bytes = chunks * chunk / bits * 16 * 8 * octets_of(m);
    *shared = plan->x_shared || registers > X_REGISTERS;
    return *shared && bytes > X_BYTES ? 0 : chunks;
}

static int64_t part_of(const product_call *product, int bits, int cluster)
{
    return divide_up(divide_up(product->k * bits / 8, cluster), PIECE) * PIECE;
}

void cup__stream_choose(const product_call *product, int bits, int multiprocessors,
                        cup__stream_plan *plan)
{
    int64_t least = 0, units = divide_up(product->n, UNIT);
    /* The rows of x of a whole line of weights leave too little room when they are many. */
    for (int cluster = product->m > 8 ? 2 : 1; cluster <= CLUSTER_MOST; cluster *= 2) {
        cup__stream_plan one = {.cluster = cluster,
                                .clusters = multiprocessors / cluster,
                                .warps = STREAM_WARPS,
                                .pieces = bits == 16 ? 4 : 2,
                                .blocks = 1};
        one.clusters = one.clusters < 1 ? 1 : one.clusters;
        bool shared;
        int64_t part = part_of(product, bits, cluster);
        int64_t held = held_of(part, product->m, bits, &one, &shared);
        /* A chunk of so many rows of x in registers leaves room for no more of the weights. */
        if (!held && octets_of(product->m) == 8)
            one.pieces = 2;
        int64_t waves = divide_up(units * product->batch_count, one.clusters);
        int64_t x = 8 * octets_of(product->m) * part / bits * 16;
        int64_t cost = waves * UNIT * part + (cluster > 1 ? CLUSTER_COST : 0) +
                       (!held ? waves * x : shared ? waves * x / 8 : 0);
        if (!least || cost < least) {
            least = cost;
            *plan = one;
        }
    }
}

/* What follows from a plan: clusters for a matrix, units of each, bytes of a row that a block
 * reads, and of one that a stage has; chunks of x that stay. */
typedef struct geometry {
    int64_t each, share, part, chunk, stage, held, stages, shared;
    bool x_shared;
} geometry;

/* Bytes of shared memory beside the ring: sums of warps and of blocks, and rows of x. Rounded up
 * in m, so that the number of stages, which a kernel is compiled for, does not hang on it. */
static int64_t beside_ring(const geometry *g, const cup__stream_plan *plan, int bits, int64_t share,
                           int64_t m)
{
    int64_t tokens = 8 * octets_of(m), most = 1;
    while (most < m)
        most *= 2;
    int64_t sums = (tokens > 16 ? 1 : 2) * plan->warps * tokens * (UNIT + 4) * 4;
    int64_t slots = divide_up(share, plan->cluster) * plan->cluster;
    int64_t inbox = plan->cluster > 1 ? slots * most * UNIT * 4 : 0;
    int64_t x = g->x_shared ? g->held * g->chunk / bits * 16 * tokens : 0;
    return 16 + sums + inbox + x;
}

static geometry geometry_of(const product_call *product, int bits, const cup__stream_plan *plan)
{
    geometry g = {.chunk = plan->warps * plan->pieces * PIECE};
    int64_t units = divide_up(product->n, UNIT), m = product->m;
    int64_t memory = (plan->memory ? plan->memory : SHARED_MOST) / plan->blocks;
    g.stage = UNIT * (g.chunk % 128 ? g.chunk : g.chunk + 64);
    g.part = part_of(product, bits, plan->cluster);
    g.held = held_of(g.part, m, bits, plan, &g.x_shared);
    g.each = plan->clusters / product->batch_count;
    g.each = g.each < 1 ? 1 : g.each > units ? units : g.each;
    while (g.each < units && beside_ring(&g, plan, bits, divide_up(units, g.each), m) +
                                     RING_LEAST * (g.stage + 16) > memory)
        g.each *= 2;
    g.share = divide_up(units, g.each < units ? g.each : units);
    g.each = divide_up(units, g.share);
    int64_t beside = beside_ring(&g, plan, bits, g.share, m);
    int64_t steps = g.share * divide_up(g.part, g.chunk);
    g.stages = (memory - beside) / (g.stage + 16);
    g.stages = g.stages < 1 ? 1 : g.stages > steps ? steps : g.stages;
    g.shared = g.stages * (g.stage + 16) + beside;
    return g;
}

static stream_call stream_of(const product_call *product, int bits, const packed_call *weights,
                             const geometry *g, int cluster)
{
    stream_call to = {.weight = product->b,
                      .x = product->a,
                      .weight_row = product->b_mn,
                      .n = (int)product->n,
                      .line = (int)(product->k * bits / 8),
                      .part = (int)g->part,
                      .units = (int)g->share,
                      .m = (int)product->m,
                      .cluster_shift = cup__shift_of(cluster),
                      .x_row = product->a_mn,
                      .y_row = product->y_row,
                      .y = product->y,
                      .pre = product->pre,
                      .bias = product->bias,
                      .scale = weights->scale,
                      .zero = weights->zero,
                      .groups = (int)weights->groups,
                      .shift = weights->groups > 1 ? cup__shift_of(weights->group) : 30};
    if (product->batch_ndim) {
        to.weight_batch = product->b_batch[0] * bits / 8;
        to.x_batch = product->a_batch[0];
        to.y_batch = product->y_batch[0];
    }
    return to;
}

cup_status cup__rows_stream(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const product_call *product, const packed_call *weights,
                            const cup__stream_plan *plan)
{
    if (product->n == 0 || product->m == 0)
        return CUP_OK;
    geometry g = geometry_of(product, bits, plan);
    bool whole = plan->cluster == 1 && product->k * bits / 8 <= g.chunk &&
                 product->b_mn == product->k * bits / 8;
    bool after = weights->groups <= 1 || weights->group % (8 * PIECE / bits) == 0;
    cup__knob knobs[] = {{"CUP_T", dtype},
                         {"SCALE_T", scale_dtype},
                         {"BITS", bits},
                         {"OCTETS", octets_of(product->m)},
                         {"PIECES", plan->pieces},
                         {"WARPS", plan->warps},
                         {"STAGES", g.stages},
                         {"HELD", g.held},
                         {"XSHARED", g.held && g.x_shared},
                         {"AFTER", bits < 16 && after},
                         {"ALONE", plan->cluster == 1},
                         {"WHOLE", whole},
                         {"BLOCKS", plan->blocks},
                         {"ACTIVATION", activation}};
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "weight_only_stream.cu", "linear_stream", knobs,
                                          (int)(sizeof knobs / sizeof *knobs));
    if (!kernel)
        return c->error.status;
    stream_call work = stream_of(product, bits, weights, &g, plan->cluster);
    cup__grid grid = {.x = g.each * plan->cluster,
                      .y = product->batch_count,
                      .threads = 32 * plan->warps + 32,
                      .cluster = plan->cluster,
                      .shared = (int)g.shared,
                      .dependent = true};
    return cup__launch(gpu, kernel, grid, CUP__ARG(work));
}

/* Into how many parts k is cut, so that two blocks find work on every multiprocessor. */
static int64_t parts_of(int64_t blocks, int64_t runs, int multiprocessors, int64_t elements)
{
    int64_t parts = 2 * multiprocessors / blocks, most = runs / WARPS;
    if (parts > most)
        parts = most;
    int64_t bytes = blocks * elements * (int64_t)sizeof(float);
    if (parts < 2 || blocks > CUP__COUNTERS || bytes * parts > (int64_t)CUP__WORKSPACE_BYTES)
        return 1;
    return parts;
}

cup_status cup__rows_packed(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const product_call *product, const packed_call *weights)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    int multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    int tokens = product->m <= 8 ? 8 : 16;
    cup__knob knobs[] = {{"CUP_T", dtype},          {"SCALE_T", scale_dtype}, {"BITS", bits},
                         {"TOKENS", tokens},        {"TILES", TILES},         {"STAGES", STAGES},
                         {"ACTIVATION", activation}};
    cup__kernel *kernel = cup__kernel_get(gpu, "weight_only.cu", "linear_packed", knobs, 7);
    if (!kernel || !state)
        return c->error.status;
    int64_t run = 512 / bits, runs = (product->k + run - 1) / run;
    int64_t across = (product->n + ROWS - 1) / ROWS, down = (product->m + tokens - 1) / tokens;
    int64_t parts = parts_of(across * down, runs, multiprocessors, tokens * ROWS);
    int part_runs = (int)((runs + parts - 1) / parts);
    float *partial = state->workspace;
    unsigned *arrived = state->counters;
    cup__grid grid = {.x = across,
                      .y = (runs + part_runs - 1) / part_runs,
                      .z = down,
                      .threads = PRODUCT_THREADS,
                      .shared = WARPS * STAGES * 2 * TILES * 512};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*product), CUP__ARG(*weights),
                       CUP__ARG(part_runs), CUP__ARG(partial), CUP__ARG(arrived));
}
