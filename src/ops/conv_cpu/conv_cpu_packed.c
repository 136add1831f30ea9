/* conv2d and the gradient of x: tasks are blocks of places, and where these are few, of results,
 * too. How a result is added up follows from the shapes alone. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "ops/conv_cpu/conv_cpu_packed.h"
#include "ops/elementwise/pointwise.h"

#define PLACES 480     /* of a block, about */
#define DEPTH 128      /* elements of a place whose weights are to stay in the first cache */
#define TURNED 256     /* elements of a row of the weight that are turned at a time, about */

typedef struct job {
    cup__conv_class at;
    cup__conv_blocks blocks;
    cup__conv_panels panels;
    int64_t piece, pieces;    /* elements of a run that are multiplied at a time */
    int64_t taps;             /* so many taps at a time */
    int64_t *tap_at;          /* where each is in a copy */
    int64_t splits, each;     /* tasks of a block, and panels of each */
    const float *weight;      /* in f32 */
    long long w_step[4], w_group;
    float *packed;            /* groups, panels, pieces, taps, elements, columns of a panel; NULL
                                 where the one task that reads a panel packs it */
    const float *bias;
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

/* Packing the weight. */

static int64_t panel_floats(const job *j)
{
    return j->blocks.run * j->blocks.taps * j->panels.width;
}

/* The row of a panel that has channel `channel` of a tap, and how many more channels lie behind. */
static int64_t row_of(const job *j, int64_t down, int64_t right, int64_t channel, int64_t *behind)
{
    const cup__conv_blocks *b = &j->blocks;
    int64_t channels = j->at.call.channels, tap = down, at = channel;
    if (b->joined)
        at += right * channels;
    else
        tap = down * j->at.line[1].taps + right;
    int64_t piece = at / j->piece, begin = piece * j->piece;
    int64_t length = least(j->piece, b->run - begin);
    *behind = least(begin + length - at, channels - channel);
    return begin * b->taps + tap * length + at - begin;
}

/* Where the weight has a tap. */
static int64_t tap_offset(const job *j, int64_t down, int64_t right)
{
    return cup__conv_tap_of(&j->at.line[0], down) * j->w_step[2] +
           cup__conv_tap_of(&j->at.line[1], right) * j->w_step[3];
}

/* Where results, or channels, are neighbours in memory. */
static void pack_neighbours(const job *j, const float *from, int64_t columns, float *to)
{
    const cup__conv_class *l = &j->at;
    int64_t width = j->panels.width, taps = l->line[1].taps, behind;
    for (int64_t t = 0; t < l->line[0].taps * taps; t++) {
        const float *tap = from + tap_offset(j, t / taps, t % taps);
        for (int64_t c = 0; c < l->call.channels; c += behind) {
            float *row = to + row_of(j, t / taps, t % taps, c, &behind) * width;
            if (j->w_step[0] != 1)
                cup__conv_turn(row, width, tap + c, j->w_step[0], columns, behind);
            for (int64_t i = 0; j->w_step[0] == 1 && i < behind; i++)
                memcpy(row + i * width, tap + (c + i) * j->w_step[1],
                       (size_t)columns * sizeof *row);
        }
    }
}

/* Where the taps of a channel are. */
static void pack_taps(const job *j, const float *from, int64_t columns, float *to, float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    int64_t all = (int64_t)c->side[0].taps * c->side[1].taps, width = j->panels.width, behind;
    int64_t most = j->w_step[1] == all && all < TURNED ? TURNED / all : 1;
    for (int64_t first = 0; first < c->channels; first += most) {
        int64_t count = least(most, c->channels - first);
        cup__conv_turn(space, width, from + first * j->w_step[1], j->w_step[0], columns,
                       count * all);
        for (int64_t i = 0; i < count; i++)
            for (int64_t down = 0; down < l->line[0].taps; down++)
                for (int64_t right = 0; right < l->line[1].taps; right++)
                    memcpy(to + row_of(j, down, right, first + i, &behind) * width,
                           space + (i * all + tap_offset(j, down, right)) * width,
                           (size_t)columns * sizeof *to);
    }
}

/* Panel number `index` of all groups. `space` takes packing_floats. */
static void pack_panel(const job *j, int64_t index, float *to, float *space)
{
    const conv_call *c = &j->at.call;
    int64_t group = index / j->panels.count, result = index % j->panels.count * j->panels.width;
    int64_t columns = least(j->panels.width, c->results - result);
    const float *from = j->weight + group * j->w_group + result * j->w_step[0];
    if (columns < j->panels.width)
        memset(to, 0, (size_t)panel_floats(j) * sizeof *to);
    if (j->w_step[0] == 1 || j->w_step[1] == 1)
        pack_neighbours(j, from, columns, to);
    else
        pack_taps(j, from, columns, to, space);
}

static int64_t packing_floats(const job *j)
{
    int64_t taps = (int64_t)j->at.call.side[0].taps * j->at.call.side[1].taps;
    return j->panels.width * (TURNED + taps);
}

static void pack_panels(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    float *space = cup__malloc((size_t)packing_floats(j) * sizeof *space);
    for (int64_t i = begin; space && i < end; i++)
        pack_panel(j, i, j->packed + i * panel_floats(j), space);
    if (!space)
        atomic_store(&j->no_memory, 1);
    cup__free(space);
}

/* The weight in f32 and with the taps of a channel behind each other, in the order that forward's
 * has; NULL without memory. */
static float *plain_weight(const cup__conv *v)
{
    const conv_call *c = &v->call;
    int64_t high = c->side[0].taps, wide = c->side[1].taps, size = cup_dtype_size(v->dtype);
    int64_t rows = (int64_t)c->groups * c->results * c->channels * high;
    float *to = cup__malloc((size_t)(rows * wide + 1) * sizeof *to);
    for (int64_t r = 0; to && r < rows; r++) {
        int64_t channel = r / high % c->channels, result = r / high / c->channels;
        int64_t at = result / c->results * c->w_group + result % c->results * c->w_step[0] +
                     channel * c->w_step[1] + r % high * c->w_step[2];
        cup__conv_load(to + r * wide, (const char *)c->w + at * size, c->w_step[3], wide, v->dtype);
    }
    return to;
}

static bool lies_by_taps(const cup__conv *v)
{
    return v->call.w_step[3] == 1 && v->call.w_step[2] == v->call.side[1].taps;
}

static bool lies_plainly(const cup__conv *v)
{
    const long long *step = v->call.w_step;
    return v->dtype == CUP_F32 && (lies_by_taps(v) || step[0] == 1 || step[1] == 1);
}

typedef struct turning {
    const conv_call *call;
    float *to;
} turning;

static void turn_channels(int64_t begin, int64_t end, void *user)
{
    const turning *t = user;
    const conv_call *c = t->call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    for (int64_t i = begin; i < end; i++)
        cup__conv_turn(t->to + i * taps * c->results, c->results,
                       (const float *)c->w + i / c->channels * c->w_group +
                           i % c->channels * c->w_step[1],
                       c->w_step[0], c->results, taps);
}

/* The same with results as neighbours, by channels and taps. */
static float *turned_weight(const cup__conv *v)
{
    const conv_call *c = &v->call;
    int64_t rows = (int64_t)c->groups * c->channels;
    int64_t each = (int64_t)c->side[0].taps * c->side[1].taps * c->results;
    turning t = {c, cup__malloc((size_t)(rows * each + 1) * sizeof(float))};
    if (t.to)
        cup__parallel_for(rows, 1 + 16384 / (each + 1), turn_channels, &t);
    return t.to;
}

/* Where the weight is to be read: where it lies, or a copy, which the job has then to free. False
 * without memory. */
static bool take_weight(job *j, const cup__conv *v, float **copy)
{
    const conv_call *c = &v->call;
    int64_t wide = c->side[1].taps, taps = c->side[0].taps * wide, results = c->results;
    bool parts = conv_classes(&c->side[0], c->back) * conv_classes(&c->side[1], c->back) > 1;
    j->weight = c->w;
    j->w_group = c->w_group;
    memcpy(j->w_step, c->w_step, sizeof j->w_step);
    if (lies_plainly(v) && !(parts && lies_by_taps(v)))
        return true;
    /* Each class takes some of the taps of a channel: they are brought apart once for all. */
    bool turn = lies_plainly(v);
    long long plain[4] = {c->channels * taps, taps, wide, 1};
    long long turned[4] = {1, taps * results, wide * results, results};
    memcpy(j->w_step, turn ? turned : plain, sizeof j->w_step);
    j->w_group = results * c->channels * taps;
    j->weight = *copy = turn ? turned_weight(v) : plain_weight(v);
    return *copy != NULL;
}

/* Multiplying. */

/* Where each place of a block begins in its copy, up to whole pieces. */
static void set_places(const job *j, const cup__conv_block *k, int64_t *to)
{
    const cup__conv_blocks *b = &j->blocks;
    int64_t step = b->step[1] * j->at.call.channels, at = 0;
    for (int64_t i = 0; i < k->images * k->lines[0]; i++) {
        int64_t line = cup__conv_block_line(b, i / k->lines[0], i % k->lines[0]);
        for (int64_t p = 0; p < k->lines[1]; p++)
            to[at++] = line + p * step;
    }
    for (; at % CUP__CONV_ROWS; at++)
        to[at] = to[0];
}

/* The sums of a block for a panel, places by columns. */
static void multiply(const job *j, const float *copy, const int64_t *place, int64_t places,
                     const float *panel, float *sums)
{
    const cup__conv_blocks *b = &j->blocks;
    int64_t width = j->panels.width;
    void (*run)(const cup__conv_gather *) = j->panels.by.gather[j->panels.vectors - 1];
    if (b->run * b->taps == 0)
        memset(sums, 0, (size_t)(places * width) * sizeof *sums);
    for (int64_t begin = 0; begin < b->run; begin += j->piece) {
        int64_t length = least(j->piece, b->run - begin);
        for (int64_t t = 0; t < b->taps; t += j->taps) {
            cup__conv_gather g = {.taps = j->tap_at + t, .tap_count = least(j->taps, b->taps - t),
                                  .channels = length, .distance = width, .add = begin + t > 0,
                                  .weight = panel + (begin * b->taps + t * length) * width};
            for (int64_t p = 0; p < places; p += CUP__CONV_ROWS) {
                for (int i = 0; i < CUP__CONV_ROWS; i++)
                    g.x[i] = copy + place[p + i] + begin;
                g.sums = sums + p * width;
                run(&g);
            }
        }
    }
}

CUP__WIDE static void add_rows(float *y, int64_t distance, int64_t rows, const float *x,
                               int64_t count)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < count; i++)
            y[r * distance + i] += x[i];
}

/* Puts lines of places, which lie evenly in y, where they go. */
static void store_line(const job *j, char *y, int64_t places, int64_t columns, const float *sums,
                       float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    int64_t size = cup_dtype_size(l->dtype), step = l->line[1].every * c->y_step[3];
    int64_t width = j->panels.width;
    if (c->y_step[1] == 1) {
        for (int64_t p = 0; p < places; p++)
            cup__store_f32(y + p * step * size, sums + p * width, l->dtype, columns);
    } else if (l->dtype == CUP_F32 && step == 1) {
        cup__conv_turn((float *)(void *)y, c->y_step[1], sums, width, places, columns);
    } else {
        cup__conv_turn(space, places, sums, width, places, columns);
        for (int64_t o = 0; o < columns; o++)
            cup__conv_store(y + o * c->y_step[1] * size, step, space + o * places, places,
                            l->dtype);
    }
}

static void finish(const job *j, const cup__conv_block *k, int64_t group, int64_t result,
                   int64_t columns, float *sums, float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    const conv_line *high = &l->line[0], *wide = &l->line[1];
    int64_t lines = k->lines[0], places = k->lines[1], size = cup_dtype_size(l->dtype);
    if (j->bias)
        add_rows(sums, j->panels.width, k->images * lines * places,
                 j->bias + group * c->results + result, columns);
    if (places == wide->count &&
        high->every * c->y_step[2] == places * wide->every * c->y_step[3]) {
        places *= lines;
        lines = 1;
    }
    for (int64_t i = 0; i < k->images * lines; i++) {
        int64_t row = high->first + (k->line[0] + i % lines) * high->every;
        int64_t column = wide->first + k->line[1] * wide->every;
        int64_t at = group * c->y_group + result * c->y_step[1] +
                     (k->image + i / lines) * c->y_step[0] + row * c->y_step[2] +
                     column * c->y_step[3];
        store_line(j, (char *)c->y + at * size, places, columns,
                   sums + i * places * j->panels.width, space);
    }
}

static int64_t places_most(const job *j)
{
    const cup__conv_blocks *b = &j->blocks;
    return over(b->images * b->lines[0] * b->lines[1], CUP__CONV_ROWS) * CUP__CONV_ROWS;
}

static void run_task(const job *j, int64_t index, int64_t *place, float *own, float *copy)
{
    const conv_call *c = &j->at.call;
    const cup__conv_blocks *b = &j->blocks;
    int64_t width = j->panels.width;
    int64_t split = index % j->splits, group = index / j->splits / b->count;
    cup__conv_block k = cup__conv_block_of(b, index / j->splits % b->count);
    int64_t places = over(k.images * k.lines[0] * k.lines[1], CUP__CONV_ROWS) * CUP__CONV_ROWS;
    float *sums = copy + cup__conv_blocks_floats(b), *space = sums + places_most(j) * width;
    if (b->run * b->taps > 0)
        cup__conv_block_copy(b, &k, group, copy, space);
    set_places(j, &k, place);
    int64_t end = least((split + 1) * j->each, j->panels.count);
    for (int64_t p = split * j->each; p < end; p++) {
        int64_t number = group * j->panels.count + p;
        if (!j->packed)
            pack_panel(j, number, own, own + panel_floats(j));
        multiply(j, copy, place, places, j->packed ? j->packed + number * panel_floats(j) : own,
                 sums);
        finish(j, &k, group, p * width, least(width, c->results - p * width), sums, space);
    }
}

static void run_tasks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int64_t places = places_most(j), sums = places * j->panels.width;
    int64_t line = j->blocks.wide * j->at.call.channels;
    int64_t floats = cup__conv_blocks_floats(&j->blocks) + sums + (line > sums ? line : sums);
    int64_t panel = j->packed ? 0 : panel_floats(j) + packing_floats(j);
    float *copy = cup__malloc((size_t)(panel + floats) * sizeof *copy);
    int64_t *place = cup__malloc((size_t)places * sizeof *place);
    for (int64_t i = begin; copy && place && i < end; i++)
        run_task(j, i, place, copy, copy + panel);
    if (!copy || !place)
        atomic_store(&j->no_memory, 1);
    cup__free(copy);
    cup__free(place);
}

static void choose(job *j)
{
    const conv_call *c = &j->at.call;
    int64_t tasks = cup__threads() > 1 ? 4 * (int64_t)cup__threads() : 1;
    j->panels = cup__conv_panels_of(c->results);
    int64_t enough = over(tasks, c->groups * j->panels.count);
    cup__conv_blocks_make(&j->blocks, &j->at, PLACES, enough);
    const cup__conv_blocks *b = &j->blocks;
    j->pieces = over(b->run, DEPTH);
    j->piece = b->run ? over(b->run, j->pieces) : 1;
    j->taps = j->piece < DEPTH ? DEPTH / j->piece : 1;
    j->taps = b->taps ? over(b->taps, over(b->taps, j->taps)) : 1;
    j->splits = least(over(tasks, c->groups * b->count), j->panels.count);
    j->each = over(j->panels.count, j->splits);
    j->splits = over(j->panels.count, j->each);
}

static bool run_class(const cup__conv *v, job *j, int row, int column)
{
    const conv_call *c = &v->call;
    bool good = cup__conv_class_make(&j->at, v, row, column);
    if (good && j->at.places > 0) {
        choose(j);
        int64_t panels = c->groups * j->panels.count;
        bool once = j->blocks.count == 1;
        j->packed = once ? NULL : cup__malloc((size_t)(panels * panel_floats(j) + 1) *
                                              sizeof *j->packed);
        j->tap_at = cup__calloc((size_t)j->blocks.taps + 1, sizeof *j->tap_at);
        good = (once || j->packed) && j->tap_at;
        if (good && !once && panel_floats(j) > 0)
            cup__parallel_for(panels, 1, pack_panels, j);
        if (good)
            cup__conv_blocks_taps(&j->blocks, j->tap_at);
        if (good && !atomic_load(&j->no_memory))
            cup__parallel_for(c->groups * j->blocks.count * j->splits, 1, run_tasks, j);
        cup__free(j->packed);
        cup__free(j->tap_at);
    }
    cup__conv_class_free(&j->at);
    return good && !atomic_load(&j->no_memory);
}

cup_status cup__conv_packed(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t all = (int64_t)c->groups * c->results;
    if (call->out[0]->count == 0)
        return CUP_OK;
    float *bias = c->bias ? cup__malloc((size_t)all * sizeof *bias) : NULL;
    float *copy = NULL;
    job j = {.bias = bias};
    bool good = take_weight(&j, &v, &copy) && (bias || !c->bias);
    if (bias)
        cup__conv_load(bias, c->bias, c->bias_step, all, v.dtype);
    for (int i = 0; good && i < conv_classes(&c->side[0], c->back); i++)
        for (int k = 0; good && k < conv_classes(&c->side[1], c->back); k++)
            good = run_class(&v, &j, i, k);
    cup__free(bias);
    cup__free(copy);
    return good ? CUP_OK : cup__call_fail(call, CUP_MEMORY, "out of host memory for a block");
}

const char *cup__conv_packed_refuses(const cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    bool fits = true;
    if (cup__conv_few_results(&v.call))
        return "its groups have few results and one tap, so that x need not be copied";
    for (int i = 0; fits && i < conv_classes(&v.call.side[0], v.call.back); i++)
        for (int k = 0; fits && k < conv_classes(&v.call.side[1], v.call.back); k++) {
            cup__conv_class at = {.call = v.call};
            at.line[0] = conv_line_of(&v.call.side[0], v.call.back, i);
            at.line[1] = conv_line_of(&v.call.side[1], v.call.back, k);
            fits = cup__conv_blocks_fit(&at);
        }
    return fits ? cup__conv_cpu_refuses(call) : "the taps of a place are too far from each other";
}
