/* Blocks of places, and copies of what they read. */
#include <string.h>

#include "base/memory.h"
#include "ops/conv_cpu/conv_cpu_packed.h"
#include "ops/elementwise/pointwise.h"

#define FLOATS_AIM (1 << 18)  /* of a copy, so that it stays in a cache */
#define FLOATS_MOST (1 << 21) /* beyond which a place's copy is not made */
#define FEW_RESULTS 8         /* of a group */
#define LEAST 48              /* places of a block that is not cut further for more of them */

static int64_t over(int64_t count, int64_t by)
{
    return (count + by - 1) / by;
}

/* Copying. */

/* Places along a direction, of `count`, that lie inside of `size`: from *begin to *end. */
static void inside(const cup__conv_window *w, int d, int64_t *begin, int64_t *end)
{
    int64_t from = w->from[d], every = w->every[d], left = w->size[d] - from;
    *begin = from < 0 ? over(-from, every) : 0;
    *end = left > 0 ? over(left, every) : 0;
    *end = *end < w->count[d] ? *end : w->count[d];
    *begin = *begin < *end ? *begin : *end;
}

/* Columns of a row whose channels are neighbours. */
static void copy_last(const cup__conv_window *w, const char *from, int64_t step, int64_t count,
                      float *to)
{
    int64_t size = cup_dtype_size(w->dtype);
    if (step == w->channels && w->width == w->channels) {
        cup__load_f32(to, from, w->dtype, count * step);
        return;
    }
    for (int64_t i = 0; i < count; i++, to += w->width) {
        cup__load_f32(to, from + i * step * size, w->dtype, w->channels);
        if (w->width > w->channels)
            memset(to + w->channels, 0, (size_t)(w->width - w->channels) * sizeof *to);
    }
}

/* Columns of a row whose channels lie anyhow. */
static void copy_turned(const cup__conv_window *w, const char *from, int64_t step, int64_t count,
                        float *to, float *space)
{
    int64_t size = cup_dtype_size(w->dtype), distance = w->step[1];
    const float *rows = (const float *)(const void *)from;
    if (w->dtype != CUP_F32 || step != 1) {
        for (int64_t c = 0; c < w->channels; c++)
            cup__conv_load(space + c * count, from + c * w->step[1] * size, step, count, w->dtype);
        rows = space;
        distance = count;
    }
    cup__conv_turn(to, w->width, rows, distance, w->channels, count);
    for (int64_t i = 0; w->width > w->channels && i < count; i++)
        memset(to + i * w->width + w->channels, 0, (size_t)(w->width - w->channels) * sizeof *to);
}

void cup__conv_window_fill(const cup__conv_window *w, float *to, float *space)
{
    int64_t begin[2], end[2], line = w->count[1] * w->width, step = w->step[3] * w->every[1];
    for (int d = 0; d < 2; d++)
        inside(w, d, &begin[d], &end[d]);
    int64_t count = end[1] - begin[1];
    for (int64_t i = 0; i < w->images * w->count[0]; i++, to += line) {
        int64_t image = w->image + i / w->count[0], row = i % w->count[0];
        if (row < begin[0] || row >= end[0] || count == 0) {
            memset(to, 0, (size_t)line * sizeof *to);
            continue;
        }
        int64_t at = image * w->step[0] + (w->from[0] + row * w->every[0]) * w->step[2] +
                     (w->from[1] + begin[1] * w->every[1]) * w->step[3];
        const char *from = (const char *)w->data + at * cup_dtype_size(w->dtype);
        float *first = to + begin[1] * w->width;
        memset(to, 0, (size_t)(begin[1] * w->width) * sizeof *to);
        if (w->step[1] == 1)
            copy_last(w, from, step, count, first);
        else
            copy_turned(w, from, step, count, first, space);
        memset(to + end[1] * w->width, 0, (size_t)(line - end[1] * w->width) * sizeof *to);
    }
}

/* Blocks. */

static int64_t common(int64_t a, int64_t b)
{
    return conv_common((int)a, (int)b);
}

/* Copied elements of so many places. */
static int64_t span(const cup__conv_blocks *b, int d, int64_t places)
{
    int64_t taps = b->at->line[d].taps;
    return (places - 1) * b->step[d] + (taps > 0 ? taps - 1 : 0) * b->tap_step[d] + 1;
}

static void set_steps(cup__conv_blocks *b, int d)
{
    const conv_line *l = &b->at->line[d];
    int64_t tap = l->tap_step < 0 ? -(int64_t)l->tap_step : l->tap_step;
    int64_t every = l->taps == 1 ? l->step : common(l->step, tap);
    b->every[d] = every;
    b->step[d] = l->step / every;
    b->tap_step[d] = tap / every;
    b->from[d] = l->from - (l->tap_step < 0 ? (l->taps - 1) * tap : 0);
}

static void set_counts(cup__conv_blocks *b)
{
    const conv_line *l = b->at->line;
    b->counts[0] = over(b->at->call.images, b->images);
    b->counts[1] = over(l[0].count, b->lines[0]);
    b->counts[2] = over(l[1].count, b->lines[1]);
    b->count = b->counts[0] * b->counts[1] * b->counts[2];
    b->high = span(b, 0, b->lines[0]);
    b->wide = span(b, 1, b->lines[1]);
}

int64_t cup__conv_blocks_floats(const cup__conv_blocks *b)
{
    return b->images * b->high * b->wide * b->at->call.channels + CUP__CONV_ROWS;
}

/* Cuts the lines along a direction into more pieces. */
static void cut(cup__conv_blocks *b, int d)
{
    int64_t count = b->at->line[d].count, lines = over(count, over(count, b->lines[d]) + 1);
    b->lines[d] = lines < b->lines[d] ? lines : b->lines[d] - 1;
}

static int64_t places_of(const cup__conv_blocks *b)
{
    return b->images * b->lines[0] * b->lines[1];
}

void cup__conv_blocks_make(cup__conv_blocks *b, const cup__conv_class *at, int64_t places,
                           int64_t enough)
{
    const conv_call *c = &at->call;
    *b = (cup__conv_blocks){.at = at, .images = 1};
    for (int d = 0; d < 2; d++) {
        set_steps(b, d);
        b->lines[d] = at->line[d].count;
    }
    b->joined = b->tap_step[1] == 1 && at->line[1].taps > 1;
    b->run = (int64_t)c->channels * (b->joined ? at->line[1].taps : 1);
    b->taps = (int64_t)at->line[0].taps * (b->joined ? 1 : at->line[1].taps);
    for (set_counts(b); places_of(b) > places || cup__conv_blocks_floats(b) > FLOATS_AIM;
         set_counts(b)) {
        int d = b->lines[0] > 1 ? 0 : 1;
        if (b->lines[d] == 1)
            break;
        cut(b, d);
    }
    for (; b->count < enough && b->lines[0] > 1 && places_of(b) >= 2 * LEAST; set_counts(b))
        cut(b, 0);
    int64_t one = places_of(b), floats = cup__conv_blocks_floats(b);
    int64_t images = c->images * b->counts[1] * b->counts[2] / (enough > 0 ? enough : 1);
    images = images < places / one ? images : places / one;
    images = images < FLOATS_AIM / floats ? images : FLOATS_AIM / floats;
    if (b->counts[1] == 1 && b->counts[2] == 1 && images > 1)
        b->images = over(c->images, over(c->images, images));
    set_counts(b);
}

bool cup__conv_few_results(const conv_call *c)
{
    return c->results < FEW_RESULTS && c->side[0].taps == 1 && c->side[1].taps == 1;
}

bool cup__conv_blocks_fit(const cup__conv_class *at)
{
    cup__conv_blocks b = {.at = at, .images = 1, .lines = {1, 1}};
    double floats = (double)at->call.channels;
    for (int d = 0; d < 2; d++) {
        set_steps(&b, d);
        floats *= (double)span(&b, d, 1);
    }
    return floats <= FLOATS_MOST;
}

void cup__conv_blocks_taps(const cup__conv_blocks *b, int64_t *to)
{
    int64_t across = b->joined ? 1 : b->at->line[1].taps;
    for (int64_t t = 0; t < b->taps; t++)
        to[t] = (t / across * b->tap_step[0] * b->wide + t % across * b->tap_step[1]) *
                b->at->call.channels;
}

int64_t cup__conv_tap_of(const conv_line *l, int64_t tap)
{
    return l->tap + (l->tap_step < 0 ? l->taps - 1 - tap : tap) * (int64_t)l->tap_every;
}

cup__conv_block cup__conv_block_of(const cup__conv_blocks *b, int64_t index)
{
    const conv_line *l = b->at->line;
    int64_t column = index % b->counts[2] * b->lines[1];
    int64_t row = index / b->counts[2] % b->counts[1] * b->lines[0];
    int64_t image = index / b->counts[2] / b->counts[1] * b->images;
    cup__conv_block k = {image, b->at->call.images - image, {row, column},
                         {l[0].count - row, l[1].count - column}};
    k.images = k.images < b->images ? k.images : b->images;
    for (int d = 0; d < 2; d++)
        k.lines[d] = k.lines[d] < b->lines[d] ? k.lines[d] : b->lines[d];
    return k;
}

void cup__conv_block_copy(const cup__conv_blocks *b, const cup__conv_block *k, int64_t group,
                          float *to, float *space)
{
    const cup__conv_class *l = b->at;
    const conv_call *c = &l->call;
    cup__conv_window w = {.dtype = l->dtype, .step = c->x_step, .channels = c->channels,
                          .width = c->channels, .image = k->image, .images = k->images};
    w.data = (const char *)c->x + group * c->x_group * cup_dtype_size(l->dtype);
    int64_t count[2] = {b->high, b->wide};
    for (int d = 0; d < 2; d++) {
        w.size[d] = l->line[d].size;
        w.every[d] = b->every[d];
        w.from[d] = b->from[d] + k->line[d] * l->line[d].step;
        w.count[d] = count[d];
    }
    cup__conv_window_fill(&w, to, space);
}

int64_t cup__conv_block_line(const cup__conv_blocks *b, int64_t image, int64_t row)
{
    return (image * b->high + row * b->step[0]) * b->wide * b->at->call.channels;
}

cup__conv_panels cup__conv_panels_of(int64_t columns)
{
    cup__conv_panels p = {.by = cup__conv_kernels_best(columns)};
    int64_t vectors = over(columns, p.by.lanes);
    p.count = over(vectors, p.by.vectors);
    p.vectors = p.count ? over(vectors, p.count) : 0;
    p.width = p.vectors * p.by.lanes;
    p.count = p.width ? over(columns, p.width) : 0;
    return p;
}
