/* The gradient of conv2d's weight: over blocks of places, each element that they read times the
 * places' panel of dy. Blocks are put together into parts, as their shapes say, which are summed in
 * order. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "ops/conv_cpu/conv_cpu_packed.h"

#define PLACES 192                    /* of a block, about */
#define ENOUGH 16                     /* tasks */
#define FEW_TAPS 4                    /* below which a copy is worth several panels */
#define TURNED 256                    /* rows of a panel that are turned at a time, about */
#define MOST_PARTS ((int64_t)1 << 24) /* elements of all parts, where there are several */

typedef struct job {
    cup__conv_class at;
    cup__conv_blocks blocks;
    cup__conv_panels panels;
    int64_t *tap_at;      /* where each is in a copy */
    int64_t run;          /* of blocks, up to whole pieces */
    int64_t splits, each; /* tasks of a part, and panels of each */
    int64_t parts, part;  /* and blocks of each */
    float *sums;          /* parts, groups, panels, taps, runs, columns of a panel */
    atomic_int no_memory;
} job;

static int64_t over(int64_t count, int64_t by)
{
    return (count + by - 1) / by;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t panel_floats(const job *j)
{
    return j->blocks.taps * j->run * j->panels.width;
}

/* Of the result, whose taps are put together. */
static int64_t channels_at_a_time(const job *j)
{
    int64_t taps = (int64_t)j->at.call.side[0].taps * j->at.call.side[1].taps;
    return taps < TURNED ? TURNED / taps : 1;
}

static float *sums_of(const job *j, int64_t part, int64_t group, int64_t panel)
{
    int64_t before = (part * j->at.call.groups + group) * j->panels.count + panel;
    return j->sums + before * panel_floats(j);
}

/* A panel of dy: the block's places by the panel's columns. */
static void copy_dy(const job *j, const cup__conv_block *k, int64_t group, int64_t panel, float *to,
                    float *space)
{
    const conv_call *c = &j->at.call;
    int64_t result = panel * j->panels.width;
    cup__conv_window w = {.dtype = j->at.dtype, .step = c->w_step, .width = j->panels.width,
                          .channels = least(j->panels.width, c->results - result),
                          .image = k->image, .images = k->images, .every = {1, 1}};
    w.data = (const char *)c->w +
             (group * c->w_group + result * c->w_step[1]) * cup_dtype_size(w.dtype);
    for (int d = 0; d < 2; d++) {
        w.size[d] = j->at.line[d].count;
        w.from[d] = k->line[d];
        w.count[d] = k->lines[d];
    }
    cup__conv_window_fill(&w, to, space);
}

/* What a block gives to the sums of a panel: their first values, or more. */
static void add_block(const job *j, const cup__conv_block *k, const int64_t *lines,
                      const float *copy, const float *dy, float *sums, bool add)
{
    const cup__conv_blocks *b = &j->blocks;
    int64_t width = j->panels.width;
    cup__conv_outer o = {.lines = lines, .line_count = k->images * k->lines[0],
                         .places = k->lines[1], .step = b->step[1] * j->at.call.channels,
                         .dy = dy, .distance = width, .add = add};
    void (*run)(const cup__conv_outer *) = j->panels.by.outer[j->panels.vectors - 1];
    for (int64_t t = 0; t < b->taps; t++)
        for (int64_t r = 0; r < j->run; r += CUP__CONV_ROWS) {
            o.x = copy + j->tap_at[t] + r;
            o.sums = sums + (t * j->run + r) * width;
            run(&o);
        }
}

static int64_t places_of(const cup__conv_blocks *b)
{
    return b->images * b->lines[0] * b->lines[1];
}

static void run_task(const job *j, int64_t index, int64_t *lines, float *copy)
{
    const cup__conv_blocks *b = &j->blocks;
    int64_t part = index % j->parts, split = index / j->parts % j->splits;
    int64_t group = index / j->parts / j->splits, from = split * j->each;
    int64_t panels = least(j->each, j->panels.count - from);
    float *dy = copy + cup__conv_blocks_floats(b), *space = dy + places_of(b) * j->panels.width;
    int64_t first = part * j->part;
    for (int64_t i = first; i < (part + 1) * j->part && i < b->count; i++) {
        cup__conv_block k = cup__conv_block_of(b, i);
        cup__conv_block_copy(b, &k, group, copy, space);
        for (int64_t l = 0; l < k.images * k.lines[0]; l++)
            lines[l] = cup__conv_block_line(b, l / k.lines[0], l % k.lines[0]);
        for (int64_t p = from; p < from + panels; p++) {
            copy_dy(j, &k, group, p, dy, space);
            add_block(j, &k, lines, copy, dy, sums_of(j, part, group, p), i > first);
        }
    }
}

static void run_tasks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__conv_blocks *b = &j->blocks;
    int64_t line = b->wide * j->at.call.channels, columns = j->panels.width * b->lines[1];
    int64_t floats = cup__conv_blocks_floats(b) + places_of(b) * j->panels.width +
                     (line > columns ? line : columns);
    float *copy = cup__calloc((size_t)floats, sizeof *copy);
    int64_t *lines = cup__malloc((size_t)(b->images * b->lines[0]) * sizeof *lines);
    for (int64_t i = begin; copy && lines && i < end; i++)
        run_task(j, i, lines, copy);
    if (!copy || !lines)
        atomic_store(&j->no_memory, 1);
    cup__free(copy);
    cup__free(lines);
}

CUP__WIDE static void add_row(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

/* Puts rows of a panel, the taps of `count` channels from one on, where they go. */
static void store_channels(const job *j, int64_t group, int64_t panel, int64_t channel,
                           int64_t count, const float *rows, float *space)
{
    const conv_call *c = &j->at.call;
    const long long *step = c->y_step;
    int64_t wide = c->side[1].taps, lines = count * c->side[0].taps, width = j->panels.width;
    int64_t size = cup_dtype_size(j->at.dtype), columns = least(width, c->results - panel * width);
    char *to = (char *)c->y + (group * c->y_group + panel * width * step[0] + channel * step[1]) *
                                  size;
    if (j->at.dtype == CUP_F32 && step[3] == 1 && step[2] == wide &&
        step[1] == c->side[0].taps * wide) {
        cup__conv_turn((float *)(void *)to, step[0], rows, width, lines * wide, columns);
        return;
    }
    cup__conv_turn(space, lines * wide, rows, width, lines * wide, columns);
    for (int64_t o = 0; o < columns; o++)
        for (int64_t l = 0; l < lines; l++) {
            int64_t at = o * step[0] + l / c->side[0].taps * step[1] +
                         l % c->side[0].taps * step[2];
            cup__conv_store(to + at * size, step[3], space + (o * lines + l) * wide, wide,
                            j->at.dtype);
        }
}

/* Brings the taps of each channel together, some channels at a time. */
static void store_panel(const job *j, int64_t group, int64_t panel, const float *sums, float *rows)
{
    const conv_call *c = &j->at.call;
    int64_t across = c->side[1].taps, taps = c->side[0].taps * across, width = j->panels.width;
    int64_t most = channels_at_a_time(j);
    for (int64_t first = 0; first < c->channels; first += most) {
        int64_t count = least(most, c->channels - first);
        for (int64_t i = 0; i < count * taps; i++) {
            int64_t tap = i % taps, channel = first + i / taps;
            int64_t row = j->blocks.joined
                              ? tap / across * j->run + tap % across * c->channels + channel
                              : tap * j->run + channel;
            memcpy(rows + i * width, sums + row * width, (size_t)width * sizeof *rows);
        }
        store_channels(j, group, panel, first, count, rows, rows + most * taps * width);
    }
}

static void finish_panels(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const conv_call *c = &j->at.call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    int64_t floats = 2 * channels_at_a_time(j) * taps * j->panels.width;
    float *space = cup__malloc((size_t)floats * sizeof *space);
    for (int64_t i = begin; space && i < end; i++) {
        int64_t group = i / j->panels.count, panel = i % j->panels.count;
        float *sums = sums_of(j, 0, group, panel);
        for (int64_t p = 1; p < j->parts; p++)
            add_row(sums, sums_of(j, p, group, panel), panel_floats(j));
        store_panel(j, group, panel, sums, space);
    }
    if (!space)
        atomic_store(&j->no_memory, 1);
    cup__free(space);
}

static void choose(job *j)
{
    const conv_call *c = &j->at.call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    j->panels = cup__conv_panels_of(c->results);
    cup__conv_blocks_make(&j->blocks, &j->at, PLACES, 1);
    j->run = over(j->blocks.run, CUP__CONV_ROWS) * CUP__CONV_ROWS;
    j->each = taps < FEW_TAPS ? j->panels.count : 1;
    j->splits = over(j->panels.count, j->each);
    int64_t size = c->groups * j->panels.count * panel_floats(j);
    j->parts = over(ENOUGH, c->groups * j->splits);
    j->parts = least(j->parts, size > MOST_PARTS ? 1 : MOST_PARTS / size);
    j->part = over(j->blocks.count, j->parts);
    j->parts = over(j->blocks.count, j->part);
}

static cup_status set_zero(cup__call *call)
{
    cup_tensor *out = call->out[0];
    for (int64_t i = 0; i < out->count; i++)
        cup__store(out, cup__offset_of(out, i), 0);
    return CUP_OK;
}

static cup_status run_weight(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    job j = {0};
    bool good = cup__conv_class_make(&j.at, &v, 0, 0);
    if (good && (call->out[0]->count == 0 || c->images == 0 || j.at.places == 0)) {
        cup__conv_class_free(&j.at);
        return set_zero(call);
    }
    if (good) {
        choose(&j);
        int64_t panels = c->groups * j.panels.count;
        j.sums = cup__malloc((size_t)(j.parts * panels * panel_floats(&j)) * sizeof *j.sums);
        j.tap_at = cup__calloc((size_t)j.blocks.taps, sizeof *j.tap_at);
        good = j.sums && j.tap_at;
        if (good) {
            cup__conv_blocks_taps(&j.blocks, j.tap_at);
            cup__parallel_for(c->groups * j.splits * j.parts, 1, run_tasks, &j);
            cup__parallel_for(panels, 1, finish_panels, &j);
        }
    }
    cup__conv_class_free(&j.at);
    cup__free(j.sums);
    cup__free(j.tap_at);
    return good && !atomic_load(&j.no_memory)
               ? CUP_OK
               : cup__call_fail(call, CUP_MEMORY, "out of host memory for a block");
}

cup_status cup__conv_weight_packed(cup__call *call)
{
    return cup__conv_weight_apart(call, run_weight);
}

const char *cup__conv_weight_packed_refuses(const cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    cup__conv_class at = {.call = v.call};
    if (cup__conv_few_results(&v.call))
        return "its groups have few results and one tap, so that x need not be copied";
    for (int d = 0; d < 2; d++)
        at.line[d] = conv_line_of(&v.call.side[d], 0, 0);
    return cup__conv_blocks_fit(&at) ? cup__conv_cpu_refuses(call)
                                     : "the taps of a place are too far from each other";
}
