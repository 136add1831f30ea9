/* The host side of conv_halo.cu: convolutions of few results, whose image is brought once for all
 * taps where a product of taps would bring it for each. */
#include "base/divide.h"
#include "ops/conv/conv_halo.cuh"
#include "ops/conv/conv_wgmma.h"

#define BLOCK 8          /* places along each side of a block */
#define GROUP_BLOCKS 4   /* at most, of a warpgroup */
#define SUMS_MOST 256    /* columns of the blocks of a warpgroup, of which a thread has half */
#define COLUMNS 32       /* of which a tile has a multiple */
#define RESULTS_LEAST 16 /* fewer leave too much of them empty, */
#define RESULTS_MOST 128 /* and more bring enough products for each byte by taps, too */
#define TAPS_MOST 25
#define STAGES_MOST 4
#define STAGING 16384 /* bytes of shared memory for a piece of each warp */
#define FULL_LEAST 0.75 /* of tiles, what lies within the image */
#define BUSY_LEAST 0.75 /* of the multiprocessors, those that have a tile */
#define L2_BYTES 48     /* a cycle and multiprocessor */
#define TILE_CYCLES 400 /* that a tile takes besides */

typedef struct halo_plan {
    int group[2];  /* blocks of a warpgroup */
    int blocks[2]; /* and of a tile */
    int columns, chunks, steps, stages, staging;
    int64_t tiles[2], stage_bytes, weight_bytes;
    double cycles;
} halo_plan;

typedef struct halo_work {
    cup__conv_work all;
    halo_plan plan;
    conv_halo argument;
} halo_work;

static int64_t shared_of(const halo_plan *p)
{
    return p->weight_bytes + p->stages * (p->stage_bytes + 16) + 16 +
           (int64_t)p->staging * STAGING + p->columns * (int64_t)sizeof(float);
}

/* As many stages as there is room for; two at least, with one piece for each warp rather than
 * without. */
static bool fill_shared(halo_plan *p)
{
    for (p->staging = 2; p->staging > 0; p->staging--)
        for (p->stages = STAGES_MOST; p->stages >= 2; p->stages--)
            if (shared_of(p) <= CUP__WGMMA_SHARED)
                return true;
    return false;
}

/* The plan with these blocks; false where it has no room. */
static bool fill_plan(const cup__conv_work *w, int multiprocessors, halo_plan *p)
{
    int64_t lines[2], tiles = w->call->images, taps = (int64_t)w->line[0].taps * w->line[1].taps;
    for (int d = 0; d < 2; d++) {
        p->tiles[d] = divide_up(w->line[d].count, BLOCK * p->blocks[d]);
        lines[d] = BLOCK * p->blocks[d] + cup__conv_reach(w, d);
        tiles *= p->tiles[d];
        if (lines[d] > CUP__CONV_BOX)
            return false;
    }
    p->stage_bytes = divide_up(lines[0] * lines[1] * CUP__WGMMA_LINE, 1024) * 1024;
    int64_t panels = divide_up(p->columns, CUP__CONV_CHUNK) * CUP__CONV_CHUNK;
    p->weight_bytes =
        taps * p->chunks * (cup__conv_weight_along_k(w->call) ? p->columns : panels) *
        CUP__WGMMA_LINE;
    if (p->group[0] * p->group[1] * p->columns > SUMS_MOST || !fill_shared(p))
        return false;
    double blocks = p->blocks[0] * p->blocks[1], chunks = p->chunks;
    double multiplied = blocks * (double)taps * chunks * p->steps * p->columns / 2;
    double brought = (double)p->stage_bytes * chunks / L2_BYTES;
    p->cycles = (double)divide_up(tiles, multiprocessors) *
                ((multiplied > brought ? multiplied : brought) + TILE_CYCLES);
    return true;
}

/* The blocks of the tiles that take least; false where none have room. */
static bool choose(const cup__conv_work *w, int multiprocessors, halo_plan *best)
{
    int64_t bytes = w->call->channels * cup_dtype_size(w->p.dtype);
    halo_plan p = {.columns = (int)divide_up(w->call->results, COLUMNS) * COLUMNS,
                   .chunks = (int)divide_up(bytes, CUP__WGMMA_LINE), .steps = 4};
    if (p.chunks == 1)
        p.steps = (int)divide_up(bytes, 32);
    best->cycles = 0;
    for (p.group[0] = 1; p.group[0] <= GROUP_BLOCKS; p.group[0]++)
        for (p.group[1] = 1; p.group[0] * p.group[1] <= GROUP_BLOCKS; p.group[1]++)
            for (int beside = 0; beside < 2; beside++) {
                for (int d = 0; d < 2; d++)
                    p.blocks[d] = p.group[d] * (d == beside ? 2 : 1);
                if (fill_plan(w, multiprocessors, &p) && (!best->cycles || p.cycles < best->cycles))
                    *best = p;
            }
    return best->cycles > 0;
}

/* What of all tiles lies within the image. */
static double full_of(const cup__conv_work *w, const halo_plan *p)
{
    double full = 1;
    for (int d = 0; d < 2; d++)
        full *= (double)w->line[d].count / (double)(p->tiles[d] * p->blocks[d] * BLOCK);
    return full;
}

/* Why a convolution of 16 bits cannot be done so, whatever its results are; else how. */
static const char *plan_refuses(const cup__call *call, const cup__conv *v, halo_work *h)
{
    const conv_call *c = &v->call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    if ((cup_dtype_size(v->dtype) != 2 && v->dtype != CUP_F32) || v->residual)
        return "it is for 16 bits and f32, with nothing added";
    if (c->groups != 1 || c->side[0].stride != 1 || c->side[1].stride != 1 || taps < 2 ||
        taps > TAPS_MOST)
        return "it is for one group, without strides, and 2 to 25 taps";
    cup__conv_begin_tiles(&h->all, call, v);
    return c->results <= RESULTS_MOST &&
                   choose(&h->all, cup__conv_multiprocessors(call), &h->plan)
               ? NULL
               : "its weight and tiles have no room in shared memory";
}

/* The same, and where it is not likely to be faster. */
static const char *best_refuses(const cup__call *call, const cup__conv *v)
{
    halo_work h = {0};
    const char *why = plan_refuses(call, v, &h);
    if (why)
        return why;
    if (v->call.results < RESULTS_LEAST)
        return "it has few results";
    if (full_of(&h.all, &h.plan) < FULL_LEAST)
        return "its images leave too much of tiles empty";
    int64_t tiles = v->call.images * h.plan.tiles[0] * h.plan.tiles[1];
    return (double)tiles < BUSY_LEAST * cup__conv_multiprocessors(call)
               ? "it has too few tiles for the card's multiprocessors"
               : NULL;
}

static const char *refuses(const cup__call *call, bool best)
{
    const char *why = cup__conv_wgmma_refuses(call);
    if (why)
        return why;
    if (cup__conv_is_scaled(call))
        return "it knows of no scales";
    const cup__conv v = cup__conv_of(call);
    return best ? best_refuses(call, &v) : plan_refuses(call, &v, &(halo_work){0});
}

const char *cup__conv_halo_refuses(const cup__call *call)
{
    return refuses(call, false);
}

const char *cup__conv_halo_best_refuses(const cup__call *call)
{
    return refuses(call, true);
}

bool cup__conv_halo_pays(const cup__call *call, const cup__conv *v)
{
    return !best_refuses(call, v);
}

static cup_status encode_all(halo_work *h, cup_dtype y_dtype)
{
    cup__conv_work *w = &h->all;
    const conv_call *c = w->call;
    const int in[] = {w->line[0].size, w->line[1].size};
    const int out[] = {w->line[0].count, w->line[1].count};
    int64_t box[] = {0, 0, cup__wgmma_tile_k(&w->p)};
    int64_t size = cup_dtype_size(y_dtype), line = cup__wgmma_stored_line(h->plan.columns * size);
    for (int d = 0; d < 2; d++)
        box[d] = BLOCK * h->plan.blocks[d] + cup__conv_reach(w, d);
    const int64_t stored[] = {2, BLOCK, line / size};
    CUP_TRY(cup__conv_encode_boxes(w, &w->a, w->p.dtype, c->x, c->channels, in, c->x_step, box));
    CUP_TRY(cup__conv_encode_boxes(w, &w->y, y_dtype, c->y, c->results, out, c->y_step, stored));
    w->plan.tile_n = h->plan.columns;
    w->plan.cluster_m = 1;
    return cup__conv_encode_weight(w);
}

static void fill_argument(halo_work *h)
{
    const cup__conv_work *w = &h->all;
    const halo_plan *p = &h->plan;
    conv_halo *to = &h->argument;
    to->all.bias = w->call->bias;
    to->all.factor = 1;
    to->all.a_scale.data = w->call->x_scale;
    to->all.b_scale.data = w->call->w_scale;
    to->all.n = w->call->results;
    to->all.units = (int)(w->call->images * p->tiles[0] * p->tiles[1]);
    for (int d = 0; d < 2; d++) {
        to->tiles[d] = divisor_of(p->tiles[d]);
        to->from[d] = (int)w->walk[d].from;
    }
    cup__conv_weight_walk(w, &to->weight, to->weight_step);
}

static cup_status launch(halo_work *h, const cup__conv *v)
{
    cup__conv_work *w = &h->all;
    const halo_plan *p = &h->plan;
    cup__cuda *gpu = cup__cuda_of(w->c->device);
    int64_t multiprocessors = cup__cuda_facts(gpu)->multiprocessors;
    int64_t units = h->argument.all.units;
    bool along_k = cup__conv_weight_along_k(w->call);
    cup__knob knobs[] = {
        {"CUP_T", v->dtype},
        {"Y_T", v->y_dtype},
        {"BIAS_T", v->bias_dtype},
        {"HAS_BIAS", w->call->bias != NULL},
        {"ACTIVATION", v->activation},
        {"TILE_N", p->columns},
        {"CHANNEL_CHUNKS", p->chunks},
        {"K_STEPS", p->steps},
        {"TAPS_HIGH", w->line[0].taps},
        {"TAPS_WIDE", w->line[1].taps},
        {"APART_HIGH", w->line[0].taps > 1 ? w->walk[0].apart : 1},
        {"APART_WIDE", w->line[1].taps > 1 ? w->walk[1].apart : 1},
        {"GROUP_HIGH", p->group[0]},
        {"GROUP_WIDE", p->group[1]},
        {"SIDE_BY_SIDE", p->blocks[1] > p->group[1]},
        {"STAGES", p->stages},
        {"STAGING_BUFFERS", p->staging},
        {"B_ALONG", along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"SCALES", PRODUCT_SCALE_ONE}, /* of f32 that was rounded alone */
    };
    int left = w->call->x_scale ? 0 : 1;
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_halo.cu", "conv_halo_sm90", knobs,
                                          (int)(sizeof knobs / sizeof *knobs) - left);
    if (!kernel)
        return w->c->error.status;
    cup__grid grid = {.x = units < multiprocessors ? units : multiprocessors, .threads = 384,
                      .shared = (int)shared_of(p)};
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->y),
                       CUP__ARG(h->argument));
}

cup_status cup__conv_halo_rows(cup__call *call, const cup__conv *v)
{
    halo_work h = {0};
    cup__conv_begin_tiles(&h.all, call, v);
    if (!choose(&h.all, cup__conv_multiprocessors(call), &h.plan))
        return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this convolution");
    CUP_TRY(encode_all(&h, v->y_dtype));
    fill_argument(&h);
    return launch(&h, v);
}

static cup_status run(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    return cup__conv_halo_rows(call, &v);
}

cup_status cup__conv_halo(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run) : CUP_OK;
}
