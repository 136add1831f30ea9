/* The gradient of conv2d's weight by conv_weight_taps.cu: kernels of nine taps, whose result is
 * written as it lies. */
#include <math.h>

#include "base/divide.h"
#include "ops/conv/conv_wgmma.h"
#include "ops/matmul/product_state.h"

#define TAPS 9
#define CHANNELS 32 /* of a tile */
#define TILE_M 128
#define STAGES 4
#define STAGE_BYTES ((TILE_M + TAPS * CHANNELS) * CUP__CONV_CHUNK * 2)
#define WARPS 8 /* that multiply, each with a buffer for results of */
#define STAGED_BYTES 2304
#define THREADS 384
#define SUMS_BYTES ((int64_t)TILE_M * TAPS * CHANNELS * 4)
#define PARTS_MOST 16
#define STEPS_LEAST 4 /* of a part */

/* Microseconds, fitted to an H200: to begin; of a step of 64 places, and what each part, or a
 * share, adds to it, as blocks at other places read other lines of L2; of a tile beside; and where
 * parts meet, for each of them and beside. */
#define START 4.0
#define STEP 0.73
#define STEP_PARTS 0.006
#define STEP_SHARE 0.07
#define TILE 2.6
#define JOIN 3.0
#define JOIN_EACH 0.25
#define SHARE 2.0       /* the same of shares: what a block leaves, and what each of the */
#define SHARE_EACH 2.75 /* others has of a tile */
/* Of wgmma.cu: how long a round of tiles may be before its model, which is of products, says too
 * much, how much of what is beyond that, and the copy that turns the weight, with what it moves in
 * a microsecond. */
#define ROUND 34.0
#define TOO_MUCH 0.18
#define TURN 2.5
#define TURN_EACH_US 3.5e6

/* How places are cut: not at all, into equal parts, or all steps into a share for each block. */
enum { WHOLE, PARTS, SHARES };

typedef struct plan {
    int64_t tiles, k_tiles, part_tiles;
    int slots; /* blocks that the card has at a time */
    int cut, parts;
    double time;
} plan;

/* Whether the blocks of a tile all run at a time, with memory for what they hand over. */
static bool parts_fit(const plan *p, int parts)
{
    int64_t each = divide_up(p->k_tiles, parts);
    return parts <= p->slots && divide_up(p->k_tiles, each) == parts &&
           p->tiles * parts * SUMS_BYTES <= (int64_t)CUP__WORKSPACE_BYTES;
}

static bool shares_fit(const plan *p)
{
    return p->tiles % p->slots && p->tiles < INT32_MAX / p->k_tiles &&
           p->tiles * p->k_tiles >= (int64_t)STEPS_LEAST * p->slots &&
           p->slots * SUMS_BYTES <= (int64_t)CUP__WORKSPACE_BYTES;
}

/* Takes a way to cut places if it is faster than those before. */
static void take(plan *best, int cut, int parts, int64_t part_tiles, double time)
{
    if (best->parts && time >= best->time)
        return;
    best->cut = cut;
    best->parts = parts;
    best->part_tiles = part_tiles;
    best->time = time;
}

static double time_of_parts(const plan *p, int parts, int64_t each)
{
    double step = STEP + (parts > 1 ? STEP_PARTS * parts : 0);
    double join = parts > 1 ? JOIN + JOIN_EACH * parts : 0;
    return START + (double)divide_up(p->tiles * parts, p->slots) *
                       ((double)each * step + TILE + join);
}

static double time_of_shares(const plan *p)
{
    double tiles = (double)p->tiles / p->slots, others = tiles < 1 ? ceil(1 / tiles) : 1;
    return START + tiles * (double)p->k_tiles * (STEP + STEP_SHARE) + ceil(tiles + 1) * TILE +
           SHARE + SHARE_EACH * others;
}

static plan plan_of(const cup__conv_work *w, int multiprocessors)
{
    int64_t k_tiles = divide_up(w->p.k, CUP__CONV_CHUNK);
    plan best = {.tiles = divide_up(w->p.m, TILE_M) * (w->call->channels / CHANNELS),
                 .k_tiles = k_tiles,
                 .slots = multiprocessors};
    for (int parts = 1; parts <= PARTS_MOST && (parts == 1 || parts * STEPS_LEAST <= k_tiles);
         parts++) {
        int64_t each = divide_up(k_tiles, parts);
        if (parts > 1 && !parts_fit(&best, parts))
            continue;
        take(&best, parts > 1 ? PARTS : WHOLE, parts, each, time_of_parts(&best, parts, each));
    }
    if (shares_fit(&best))
        take(&best, SHARES, 1, k_tiles, time_of_shares(&best));
    return best;
}

/* What it takes by wgmma.cu, or 0 where it has no plan. */
static double other_time(const cup__conv_work *w, int multiprocessors)
{
    cup__wgmma_plan one;
    int parts;
    if (!cup__conv_is_whole(w))
        return cup__wgmma_choose_deep(&w->p, multiprocessors, &one, &parts);
    double time = cup__wgmma_choose_parts(&w->p, multiprocessors, &one);
    if (time == 0)
        return 0;
    int64_t tiles = divide_up(w->p.m, one.tile_m) * divide_up(w->p.n, one.tile_n) * one.parts;
    double beyond = time - ROUND * (double)divide_up(tiles, multiprocessors);
    double moved = 4 * (double)w->p.m * (double)w->p.n / TURN_EACH_US;
    return time - (beyond > 0 ? TOO_MUCH * beyond : 0) + TURN + moved;
}

const char *cup__conv_weight_taps_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    if (v.call.groups != 1 || v.call.side[0].taps * v.call.side[1].taps != TAPS)
        return "it is for kernels of nine taps, in one group";
    if (v.call.channels % CHANNELS)
        return "the image's channels are no multiple of 32";
    return NULL;
}

const char *cup__conv_weight_taps_best_refuses(const cup__call *call)
{
    const char *why = cup__conv_weight_taps_refuses(call);
    if (why)
        return why;
    cup__conv_work w;
    const cup__conv v = cup__conv_of(call);
    int multiprocessors = cup__conv_multiprocessors(call);
    cup__conv_begin_depth(&w, call, &v);
    double other = other_time(&w, multiprocessors);
    return other > 0 && plan_of(&w, multiprocessors).time > other
               ? "wgmma is likely to be faster"
               : NULL;
}

/* Whether elements lie as those of a weight that is contiguous. */
static bool lies_so(const conv_call *c, const void *data, uintptr_t aligned, const int64_t step[4])
{
    const conv_side *s = c->side;
    return (uintptr_t)data % aligned == 0 && step[0] == (int64_t)TAPS * c->channels &&
           step[1] == TAPS && (s[0].taps == 1 || step[2] == s[1].taps) &&
           (s[1].taps == 1 || step[3] == 1);
}

static bool can_write(const cup__conv *v)
{
    const long long *y = v->call.y_step;
    return lies_so(&v->call, v->call.y, 16, (int64_t[]){y[0], y[1], y[2], y[3]}) &&
           (!v->residual || lies_so(&v->call, v->residual, 4, v->residual_step));
}

static cup_status fill(cup__conv_work *w, const cup__conv *v, const plan *p)
{
    wgmma_call *to = &w->argument.all;
    *to = (wgmma_call){.y = v->call.y,
                       .other = v->residual,
                       .y_row = (long long)TAPS * v->call.channels,
                       .m = (int)w->p.m,
                       .k_tiles = (int)p->k_tiles,
                       .tiles_m = (int)divide_up(w->p.m, TILE_M),
                       .units = (int)(p->tiles * p->parts),
                       .parts = p->parts,
                       .part_tiles = (int)p->part_tiles};
    return p->cut == WHOLE ? CUP_OK : cup__conv_parts_memory(w);
}

static cup_status launch(cup__conv_work *w, const plan *p)
{
    cup__cuda *gpu = cup__cuda_of(w->c->device);
    cup__knob knobs[] = {{"CUP_T", w->p.dtype}, {"PARTS", p->cut},
                         {"BASE", w->argument.all.other != NULL}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_weight_taps.cu", "conv_weight_taps", knobs, 3);
    if (!kernel)
        return w->c->error.status;
    bool all = p->cut != SHARES && w->argument.all.units <= p->slots;
    cup__grid grid = {.x = all ? w->argument.all.units : p->slots,
                      .threads = THREADS,
                      .shared = STAGES * STAGE_BYTES + WARPS * STAGED_BYTES + 16 * STAGES,
                      .dependent = all,
                      .waits = p->cut != WHOLE};
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(w->argument));
}

static cup_status run(cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    if (!can_write(&v))
        return cup__conv_weight_wgmma(call);
    cup__conv_work w;
    cup__conv_begin_depth(&w, call, &v);
    plan p = plan_of(&w, cup__conv_multiprocessors(call));
    CUP_TRY(cup__conv_encode_dy(&w, cup__conv_step_of(v.call.w_step, v.call.images,
                                                      v.call.side[0].out, v.call.side[1].out)));
    CUP_TRY(cup__conv_encode_image(&w, &w.b, CUP__CONV_CHUNK, 2 * CHANNELS));
    CUP_TRY(fill(&w, &v, &p));
    return launch(&w, &p);
}

cup_status cup__conv_weight_taps(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run) : CUP_OK;
}
