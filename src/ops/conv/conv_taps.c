/* The host side of conv_taps.cu: convolutions with a few results of many channels. */
#include <stdlib.h>
#include <string.h>

#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "ops/conv/conv_cuda.h"
#include "ops/conv/conv_taps.cuh"
#include "ops/matmul/wgmma_maps.h"

#define FEW 8             /* results at most, */
#define LEAST 16          /* and channels at least */
#define COLUMNS_MOST 72   /* taps of all results */
#define WIDEST 768        /* columns of a strip with those that it shares */
#define STAGES_LEAST 2
#define STAGES_MOST 8
#define STAGED_WELL 65536 /* bytes on their way to a block that keep memory busy */
#define RING_STEP 128     /* so that images of like sizes have one kernel */
#define FARTHEST (1 << 20) /* rows or columns from a result to its taps */
#define PLACES_MOST (INT32_MAX - (1 << 24))

typedef struct plan {
    bool strips;
    int tiles, ring, stages; /* the first two are knobs, as `strips` is */
    int64_t columns, rows, strip_count, strip;
    int64_t all, reach, blocks, each;
    double cost; /* by places; 0: it cannot be done so */
} plan;

/* Rows and columns of x that taps of a result lie apart. */
static int64_t apart(const conv_line *l)
{
    return (int64_t)(l->taps - 1) * abs(l->tap_step);
}

/* The first of them, counted from the result. */
static int64_t lowest(const conv_line *l)
{
    return l->from + (l->tap_step < 0 ? (int64_t)(l->taps - 1) * l->tap_step : 0);
}

static void lines_of(const conv_call *c, conv_line line[2])
{
    for (int d = 0; d < 2; d++)
        line[d] = conv_line_of(&c->side[d], c->back, 0);
}

static int columns_of(const conv_call *c)
{
    return c->side[0].taps * c->side[1].taps * c->results;
}

static int64_t stage_bytes(const plan *p)
{
    return (int64_t)2 * p->tiles * CONV_TAPS_BOX * CONV_TAPS_LINE;
}

/* Beside the stages. */
static int64_t other_bytes(const conv_call *c, const plan *p)
{
    int64_t columns = columns_of(c), chunks = divide_up(c->channels, CONV_TAPS_CHUNK);
    return chunks * round_up(columns, 16) * CONV_TAPS_LINE +
           columns * (p->ring + CONV_TAPS_APART) * (int64_t)sizeof(float) + STAGES_MOST * 16;
}

/* What follows from a plan's columns, rows and tiles. */
static void complete(plan *p, const conv_call *c, const conv_line line[2], int multiprocessors)
{
    int64_t step = 2 * p->tiles * CONV_TAPS_BOX, group = p->strips ? CONV_TAPS_BOX : 1;
    p->cost = 0;
    p->reach = apart(&line[0]) * p->columns + apart(&line[1]);
    if (p->reach > CUP__WGMMA_SHARED ||
        p->strip_count > PLACES_MOST / p->columns / p->rows / c->images)
        return;
    p->all = c->images * p->strip_count * p->rows * p->columns;
    p->ring = (int)round_up(p->reach + step, RING_STEP);
    int64_t stages = (CUP__WGMMA_SHARED - other_bytes(c, p)) / stage_bytes(p);
    p->stages = (int)smaller(stages, STAGES_MOST);
    if (stages < STAGES_LEAST)
        return;
    p->each = round_up(divide_up(p->all, smaller(multiprocessors, divide_up(p->all, step))), group);
    p->blocks = divide_up(p->all, p->each);
    p->cost = (double)(p->all + p->blocks * p->reach) * (p->tiles == 1 ? 1.1 : 1) *
              (p->stages * stage_bytes(p) < STAGED_WELL ? 1.15 : 1);
}

static plan better(const plan *a, const plan *b)
{
    return b->cost > 0 && (a->cost <= 0 || b->cost < a->cost) ? *b : *a;
}

/* Places as they are in x, or in strips of 64 columns or more. */
static plan choose(const conv_call *c, const conv_line line[2], bool even, int multiprocessors)
{
    plan best = {.cost = 0};
    int64_t wide = line[1].count + apart(&line[1]);
    even = even && line[0].count <= line[0].size && line[1].count <= line[1].size;
    for (int tiles = 2; tiles >= 1; tiles--) {
        plan p = {.tiles = tiles, .columns = line[1].size, .rows = line[0].size,
                  .strip_count = 1, .strip = line[1].count};
        if (even) {
            complete(&p, c, line, multiprocessors);
            best = better(&best, &p);
        }
        p.strips = true;
        p.rows = line[0].count + apart(&line[0]);
        for (p.columns = CONV_TAPS_BOX; p.columns <= WIDEST; p.columns += CONV_TAPS_BOX) {
            p.strip = p.columns - apart(&line[1]);
            if (p.strip <= 0)
                continue;
            p.strip_count = divide_up(line[1].count, p.strip);
            complete(&p, c, line, multiprocessors);
            best = better(&best, &p);
            if (p.columns >= wide)
                break;
        }
    }
    return best;
}

/* Whether neighbouring places lie evenly. */
static int64_t step_of(const conv_call *c, const conv_line line[2])
{
    int64_t places = (int64_t)c->images * line[0].size * line[1].size;
    return places == 1 ? CUP__CONV_PIECE
                       : cup__conv_step_of(c->x_step, c->images, line[0].size, line[1].size);
}

static bool is_far(const conv_line *l)
{
    return llabs(lowest(l)) + apart(l) > FARTHEST;
}

const char *cup__conv_taps_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_never(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    conv_line line[2];
    if (cup__conv_is_scaled(call) || v.activation || v.residual)
        return "it makes sums alone";
    if (c->groups != 1 || c->side[0].stride != 1 || c->side[1].stride != 1)
        return "it is for strides of 1, in one group";
    if (c->results == 0 || c->results > FEW || c->channels % CUP__CONV_PIECE || c->channels < LEAST)
        return "it is for a few results of many channels, in multiples of 8";
    if (c->side[0].taps > COLUMNS_MOST || c->side[1].taps > COLUMNS_MOST ||
        columns_of(c) > COLUMNS_MOST)
        return "its taps and results are too many for one product";
    if (c->side[0].taps == 1 && c->side[1].taps == 1)
        return "it adds up taps, of which there is one";
    lines_of(c, line);
    if (is_far(&line[0]) || is_far(&line[1]))
        return "its taps are too far from its results";
    return choose(c, line, false, cup__conv_multiprocessors(call)).cost > 0
               ? NULL
               : "its taps are too far apart for shared memory, or its places too many";
}

static conv_taps arguments_of(const conv_call *c, const conv_line line[2], const plan *p)
{
    conv_taps to = {.weight = c->w, .bias = c->bias, .y = c->y, .bias_step = c->bias_step,
                    .columns = divisor_of(p->columns), .rows = divisor_of(p->rows),
                    .strips = divisor_of(p->strip_count), .strip = (int)p->strip,
                    .channels = c->channels,
                    .chunks = (int)divide_up(c->channels, CONV_TAPS_CHUNK), .stages = p->stages,
                    .all = (unsigned)p->all, .each = (unsigned)p->each, .reach = (int)p->reach};
    for (int i = 0; i < 4; i++) {
        to.weight_step[i] = c->w_step[i];
        to.y_step[i] = c->y_step[i];
    }
    for (int d = 0; d < 2; d++) {
        int64_t row = d == 0 ? p->columns : 1; /* places from one row or column to the next */
        to.count[d] = line[d].count;
        to.size[d] = line[d].size;
        to.from[d] = line[d].from;
        to.apart[d] = line[d].tap_step;
        to.origin[d] = (int)lowest(&line[d]);
        to.tap_step[d] = (int)(line[d].tap_step * row);
        to.tap += (int)((line[d].from - lowest(&line[d])) * row);
    }
    if (!p->strips)
        to.first = (int)(lowest(&line[0]) * p->columns + lowest(&line[1]));
    return to;
}

static int64_t bytes_apart(int64_t size, int64_t step)
{
    return size == 1 ? CUP__CONV_PIECE_BYTES : step * CUP__CONV_PIECE_BYTES / CUP__CONV_PIECE;
}

static cup_status encode(cup__call *call, const cup__conv *v, const conv_line line[2],
                         const plan *p, CUtensorMap *map)
{
    const conv_call *c = &v->call;
    int64_t high = line[0].size, wide = line[1].size, places = c->images * high * wide;
    cup__boxes boxes = {.data = c->x, .dtype = v->dtype, .ndim = p->strips ? 4 : 2,
                        .size = {c->channels, p->strips ? wide : places, high, c->images},
                        .stride = {0, bytes_apart(wide, c->x_step[3]),
                                   bytes_apart(high, c->x_step[2]),
                                   bytes_apart(c->images, c->x_step[0])},
                        .box = {CONV_TAPS_CHUNK, CONV_TAPS_BOX}};
    if (!p->strips)
        boxes.stride[1] = bytes_apart(places, step_of(c, line));
    return cup__tensor_map_make(cup__cuda_of(call->c->device), &boxes, map);
}

/* How many results lie side by side in memory so that they can be written at once. */
static int together_of(const cup__conv *v, const conv_line line[2])
{
    const conv_call *c = &v->call;
    const int64_t sizes[] = {c->images, 1, line[0].count, line[1].count};
    int64_t bits = c->results, vector = CUP__CONV_PIECE;
    for (int d = 0; d < 4; d++)
        bits |= sizes[d] > 1 ? c->y_step[d] : 0;
    while (vector > 1 && (lowest_bit(bits) < vector || (uintptr_t)c->y % (uintptr_t)(2 * vector)))
        vector /= 2;
    return c->results == 1 || c->y_step[1] == 1 ? (int)vector : 1;
}

static cup_status launch(cup__call *call, const cup__conv *v, const conv_line line[2],
                         const plan *p)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const conv_call *c = &v->call;
    CUtensorMap map;
    CUP_TRY(encode(call, v, line, p, &map));
    cup__knob knobs[] = {{"CUP_T", v->dtype},     {"HIGH", line[0].taps}, {"WIDE", line[1].taps},
                         {"RESULTS", c->results}, {"RING", p->ring},      {"TILES", p->tiles},
                         {"STRIPS", p->strips},   {"Y_VEC", together_of(v, line)}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_taps.cu", "conv_taps_sm90", knobs,
                                          (int)(sizeof knobs / sizeof *knobs));
    if (!kernel)
        return call->c->error.status;
    conv_taps to = arguments_of(c, line, p);
    cup__grid grid = {.x = p->blocks, .threads = CONV_TAPS_THREADS + 32,
                      .shared = (int)(other_bytes(c, p) + p->stages * stage_bytes(p)),
                      .dependent = true};
    return cup__launch(gpu, kernel, grid, CUP__ARG(map), CUP__ARG(to));
}

static cup_status run(cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    conv_line line[2];
    lines_of(&v.call, line);
    plan p = choose(&v.call, line, step_of(&v.call, line) > 0, cup__conv_multiprocessors(call));
    return launch(call, &v, line, &p);
}

cup_status cup__conv_taps(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_image_last(call, run) : CUP_OK;
}
