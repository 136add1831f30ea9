/* The host side of conv_halo_weight.cu: gradients of weights of few channels, whose image is
 * brought once for all taps. */
#include <string.h>

#include "base/divide.h"
#include "ops/conv/conv_halo.cuh"
#include "ops/conv/conv_wgmma.h"

#define BESIDE 8       /* places of half a step, which are two rows of as many */
#define PLACES_MOST 256 /* of a tile */
#define TAPS_MOST 3    /* in a row, and rows, each of which a warpgroup has */
#define PAIRS_MOST 4   /* of 64 results and 64 channels, */
#define PAIRS_PAY 2    /* and of those that pay */
#define FULL_LEAST 0.7 /* of these what there is */
#define STAGES_MOST 4
#define TILES_LEAST 6  /* of a block, so that its sums are little beside them */

typedef struct weight_work {
    cup__conv_work all;
    int tile[2], stages;
    int64_t tiles[2], chunks[2], stage_bytes;
    conv_parts parts;
} weight_work;

/* The tile that wastes no place, has most of them, and is nearest to a square. */
static bool choose_tile(weight_work *h)
{
    const cup__conv_work *w = &h->all;
    int64_t most = 0, least_halo = 0;
    for (int high = 2; high <= PLACES_MOST / BESIDE; high += 2)
        for (int wide = BESIDE; high * wide <= PLACES_MOST; wide += BESIDE) {
            int64_t rows = high + cup__conv_reach(w, 0), columns = wide + cup__conv_reach(w, 1);
            int64_t halo = rows * columns;
            bool fits = rows <= CUP__CONV_BOX && columns <= CUP__CONV_BOX &&
                        w->line[0].count % high == 0 && w->line[1].count % wide == 0;
            if (!fits || high * wide < most || (high * wide == most && halo >= least_halo))
                continue;
            most = (int64_t)high * wide;
            least_halo = halo;
            h->tile[0] = high;
            h->tile[1] = wide;
        }
    h->stage_bytes = divide_up(least_halo * CUP__WGMMA_LINE, 1024) * 1024 +
                     divide_up(most * CUP__WGMMA_LINE, 1024) * 1024;
    for (h->stages = STAGES_MOST; h->stages * (h->stage_bytes + 16) > CUP__WGMMA_SHARED;)
        h->stages--;
    return most > 0 && h->stages >= 2;
}

static void begin(weight_work *h, const cup__call *call, const cup__conv *v)
{
    memset(h, 0, sizeof *h);
    cup__conv_begin_tiles(&h->all, call, v);
    h->chunks[0] = divide_up(v->call.results, CUP__CONV_CHUNK);
    h->chunks[1] = divide_up(v->call.channels, CUP__CONV_CHUNK);
}

/* Every part has the same number of tiles, but for the last, which has fewer. */
static void fill_parts(weight_work *h, int multiprocessors)
{
    const cup__conv_work *w = &h->all;
    int64_t units = w->call->images, most = multiprocessors / (h->chunks[0] * h->chunks[1]);
    for (int d = 0; d < 2; d++) {
        h->tiles[d] = w->line[d].count / h->tile[d];
        units *= h->tiles[d];
    }
    most = most < 1 ? 1 : most;
    int64_t taps = (int64_t)w->line[0].taps * w->line[1].taps;
    h->parts.all = units;
    h->parts.part = divide_up(units, most);
    h->parts.parts = (int)divide_up(units, h->parts.part);
    h->parts.channels = (int)h->chunks[1] * CUP__CONV_CHUNK;
    h->parts.depth = (int)(taps * h->parts.channels);
}

const char *cup__conv_weight_halo_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    weight_work h;
    if (cup_dtype_size(v.dtype) != 2 || c->groups != 1)
        return "it is for 16 bits and one group";
    for (int d = 0; d < 2; d++)
        if (c->side[d].stride != 1 || c->side[d].taps > TAPS_MOST)
            return "it is for up to 3 x 3 taps, without strides";
    begin(&h, call, &v);
    if (h.chunks[0] * h.chunks[1] > PAIRS_MOST)
        return "its channels and results are many";
    return choose_tile(&h) ? NULL : "the sides of dy are no multiples of 2 and 8";
}

const char *cup__conv_weight_halo_best_refuses(const cup__call *call)
{
    const char *why = cup__conv_weight_halo_refuses(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    weight_work h;
    begin(&h, call, &v);
    choose_tile(&h);
    fill_parts(&h, cup__conv_multiprocessors(call));
    double chunk = CUP__CONV_CHUNK, pairs = (double)(h.chunks[0] * h.chunks[1]);
    if (c->side[0].taps * c->side[1].taps < 2 * TAPS_MOST || pairs > PAIRS_PAY)
        return "it has few taps, or many channels and results";
    if ((double)c->results * c->channels < FULL_LEAST * pairs * chunk * chunk)
        return "its channels or results leave too much of 64 empty";
    return h.parts.part < TILES_LEAST ? "it has few places" : NULL;
}

static cup_status encode_all(weight_work *h)
{
    cup__conv_work *w = &h->all;
    const conv_call *c = w->call;
    const int in[] = {w->line[0].size, w->line[1].size};
    const int out[] = {w->line[0].count, w->line[1].count};
    const int64_t places[] = {h->tile[0], h->tile[1], CUP__CONV_CHUNK};
    const int64_t read[] = {h->tile[0] + cup__conv_reach(w, 0), h->tile[1] + cup__conv_reach(w, 1),
                            CUP__CONV_CHUNK};
    CUP_TRY(cup__conv_encode_boxes(w, &w->a, w->p.dtype, c->x, c->channels, in, c->x_step, read));
    return cup__conv_encode_boxes(w, &w->b, w->p.dtype, c->w, c->results, out, c->w_step, places);
}

static cup_status launch(weight_work *h, const cup__conv *v)
{
    cup__conv_work *w = &h->all;
    cup__cuda *gpu = cup__cuda_of(w->c->device);
    conv_halo_weight argument = {.sums = h->parts.sums, .units = (int)h->parts.all,
                                 .part = (int)h->parts.part, .results = v->call.results};
    for (int d = 0; d < 2; d++) {
        argument.chunks[d] = divisor_of(h->chunks[d]);
        argument.tiles[d] = divisor_of(h->tiles[d]);
        argument.from[d] = (int)w->walk[d].from;
    }
    cup__knob knobs[] = {
        {"CUP_T", v->dtype},
        {"TAPS_HIGH", w->line[0].taps},
        {"TAPS_WIDE", w->line[1].taps},
        {"APART_HIGH", w->line[0].taps > 1 ? w->walk[0].apart : 1},
        {"APART_WIDE", w->line[1].taps > 1 ? w->walk[1].apart : 1},
        {"TILE_HIGH", h->tile[0]},
        {"TILE_WIDE", h->tile[1]},
        {"STAGES", h->stages},
    };
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_halo_weight.cu", "conv_halo_weight_sm90",
                                          knobs, (int)(sizeof knobs / sizeof *knobs));
    if (!kernel)
        return w->c->error.status;
    cup__grid grid = {.x = h->parts.parts * h->chunks[0] * h->chunks[1],
                      .threads = 128 * (w->line[0].taps + 1),
                      .shared = (int)(h->stages * (h->stage_bytes + 16))};
    return cup__launch(gpu, kernel, grid, CUP__ARG(w->a), CUP__ARG(w->b), CUP__ARG(argument));
}

static cup_status run(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    weight_work h;
    begin(&h, call, &v);
    if (!choose_tile(&h))
        return cup__call_fail(call, CUP_UNSUPPORTED, "no shape of tiles fits this convolution");
    fill_parts(&h, cup__conv_multiprocessors(call));
    cup__shape shape = {CUP_F32, 3, {h.parts.parts, v.call.results, h.parts.depth}};
    cup_tensor *sums = cup__tensor_make(call->c, &shape, "partial sums");
    if (!sums)
        return call->c->error.status;
    h.parts.sums = sums->data;
    if (encode_all(&h) == CUP_OK && launch(&h, &v) == CUP_OK)
        cup__conv_add_parts(call, &v, &h.parts);
    cup_tensor_free(sums);
    return call->c->error.status;
}

cup_status cup__conv_weight_halo(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, true, run) : CUP_OK;
}
