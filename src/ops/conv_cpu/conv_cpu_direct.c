/* Convolutions of few channels a group on a CPU, depthwise ones above all: rows are multiplied by a
 * tap and added, without columns in memory. Where channels are neighbours in memory, a row is taken
 * for all of them at once. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "ops/conv_cpu/conv_cpu.h"
#include "tensor/floats.h"

#define MOST_EACH 4  /* channels and results of a group */
#define LANES 16     /* sums of a dot product side by side */
#define PARTS 16     /* into which the rows of a weight's gradient are put, at most */

typedef struct job {
    cup__conv_class at;
    const float *weight, *bias; /* in f32: groups, results, channels, all taps */
    float *parts;               /* of the weight's gradient by channels: taps by channels */
    int64_t rows;               /* of dy that a part has */
    atomic_int no_memory;
} job;

const char *cup__conv_direct_refuses(const cup__call *call)
{
    const conv_call c = cup__conv_of(call).call;
    if (c.groups == 1 || c.channels > MOST_EACH || c.results > MOST_EACH)
        return "its groups have more channels than a pass for each is good for";
    return cup__conv_cpu_refuses(call);
}

CUP__WIDE static void add_scaled_steps(float *y, const float *x, float w, int64_t step,
                                       int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += w * x[i * step];
}

CUP__WIDE static void add_products(float *y, const float *x, const float *w, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += w[i] * x[i];
}

CUP__WIDE static float dot(const float *x, int64_t step, const float *y, int64_t count)
{
    float sum[LANES] = {0}, all = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += x[(i + l) * step] * y[i + l];
    for (; i < count; i++)
        sum[i % LANES] += x[i * step] * y[i];
    for (int l = 0; l < LANES; l++)
        all += sum[l];
    return all;
}

/* Row `row` of channel `channel` of an image, in f32 and side by side. */
static const float *row_at(const cup__conv_class *l, const void *data, const long long step[4],
                           int64_t at, int64_t row, int64_t count, float *space)
{
    int64_t offset = at + row * step[2];
    if (l->dtype == CUP_F32 && step[3] == 1)
        return (const float *)data + offset;
    cup__conv_load(space, (const char *)data + offset * cup_dtype_size(l->dtype), step[3], count,
                   l->dtype);
    return space;
}

static bool row_inside(const conv_line *l, int64_t place, int tap, int64_t *row)
{
    *row = l->from + place * l->step + (int64_t)tap * l->tap_step;
    return *row >= 0 && *row < l->size;
}

/* The taps of a row of the weight, times a row of the image, into a row of results. */
static void add_taps(const cup__conv_class *l, float *y, const float *x, const float *w)
{
    const conv_line *n = &l->line[1];
    for (int t = 0; t < n->taps; t++) {
        int64_t first = l->begin[t], count = l->end[t] - first;
        const float *from = x + n->from + first * n->step + (int64_t)t * n->tap_step;
        float tap = w[n->tap + t * n->tap_every];
        if (count > 0 && n->step == 1)
            cup__floats_add_scaled(y + first, from, tap, count);
        else if (count > 0)
            add_scaled_steps(y + first, from, tap, n->step, count);
    }
}

/* A row of results: index counts images, channels of the result and rows. */
static void run_row(const job *j, int64_t index, float *y, float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    int64_t size = cup_dtype_size(l->dtype), places = l->line[1].count;
    int64_t place = index % l->line[0].count, rest = index / l->line[0].count;
    int64_t all = (int64_t)c->groups * c->results, result = rest % all, image = rest / all;
    int64_t group = result / c->results, taps = c->side[1].taps;
    for (int64_t i = 0; i < places; i++)
        y[i] = j->bias ? j->bias[result] : 0;
    for (int64_t channel = 0; channel < c->channels; channel++)
        for (int t = 0; t < l->line[0].taps; t++) {
            int64_t row, tap = l->line[0].tap + (int64_t)t * l->line[0].tap_every;
            if (!row_inside(&l->line[0], place, t, &row))
                continue;
            int64_t at = image * c->x_step[0] + group * c->x_group + channel * c->x_step[1];
            const float *x = row_at(l, c->x, c->x_step, at, row, l->line[1].size, space);
            add_taps(l, y, x, j->weight + ((result * c->channels + channel) * c->side[0].taps +
                                           tap) * taps);
        }
    int64_t to = image * c->y_step[0] + result * c->y_step[1] +
                 (l->line[0].first + place * l->line[0].every) * c->y_step[2] +
                 l->line[1].first * c->y_step[3];
    cup__conv_store((char *)c->y + to * size, l->line[1].every * c->y_step[3], y, places, l->dtype);
}

/* A row of results of all channels, one a group and neighbours in memory. */
static void run_row_of_all(const job *j, int64_t index, float *y, float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    const conv_line *n = &l->line[1];
    int64_t size = cup_dtype_size(l->dtype), place = index % l->line[0].count, row;
    int64_t image = index / l->line[0].count, width = c->groups;
    for (int64_t i = 0; i < n->count; i++)
        for (int64_t g = 0; g < width; g++)
            y[i * width + g] = j->bias ? j->bias[g] : 0;
    for (int s = 0; s < l->line[0].taps; s++) {
        if (!row_inside(&l->line[0], place, s, &row))
            continue;
        const char *from =
            (const char *)c->x + (image * c->x_step[0] + row * c->x_step[2]) * size;
        for (int64_t p = 0; p < n->size; p++)
            cup__load_f32(space + p * width, from + p * c->x_step[3] * size, l->dtype, width);
        int64_t tap = (l->line[0].tap + (int64_t)s * l->line[0].tap_every) * c->side[1].taps;
        for (int t = 0; t < n->taps; t++)
            for (int64_t i = l->begin[t]; i < l->end[t]; i++)
                add_products(y + i * width,
                             space + (n->from + i * n->step + (int64_t)t * n->tap_step) * width,
                             j->weight + (tap + n->tap + t * n->tap_every) * width, width);
    }
    for (int64_t i = 0; i < n->count; i++) {
        int64_t to = image * c->y_step[0] +
                     (l->line[0].first + place * l->line[0].every) * c->y_step[2] +
                     (n->first + i * n->every) * c->y_step[3];
        cup__store_f32((char *)c->y + to * size, y + i * width, l->dtype, width);
    }
}

/* Whether a row is taken for all channels at once. */
static bool takes_all(const cup__conv_class *l)
{
    return l->last && l->call.channels == 1 && l->call.results == 1;
}

static void run_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    bool all = takes_all(&j->at);
    int64_t width = all ? j->at.call.groups : 1;
    size_t floats = (size_t)((j->at.line[1].count + j->at.line[1].size) * width);
    float *y = cup__malloc(floats * sizeof *y + 1), *space = y + j->at.line[1].count * width;
    if (!y) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        if (all)
            run_row_of_all(j, i, y, space);
        else
            run_row(j, i, y, space);
    cup__free(y);
}

/* The weight in f32: each result's channels and taps, or for all channels at once tap by tap. */
static float *weight_of(const cup__conv *v, bool all)
{
    const conv_call *c = &v->call;
    int64_t size = cup_dtype_size(v->dtype), wide = c->side[1].taps, high = c->side[0].taps;
    int64_t rows = (int64_t)c->groups * c->results * c->channels * high;
    float *to = cup__malloc((size_t)(rows * wide + 1) * sizeof *to);
    for (int64_t r = 0; to && !all && r < rows; r++) {
        int64_t channel = r / high % c->channels, result = r / high / c->channels;
        int64_t at = result / c->results * c->w_group + result % c->results * c->w_step[0] +
                     channel * c->w_step[1] + r % high * c->w_step[2];
        cup__conv_load(to + r * wide, (const char *)c->w + at * size, c->w_step[3], wide, v->dtype);
    }
    for (int64_t t = 0; to && all && t < high * wide; t++)
        cup__conv_load(to + t * c->groups,
                       (const char *)c->w +
                           (t / wide * c->w_step[2] + t % wide * c->w_step[3]) * size,
                       c->w_group, c->groups, v->dtype);
    return to;
}

cup_status cup__conv_direct(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t all = (int64_t)c->groups * c->results;
    bool good = true, last = c->x_step[1] == 1 && c->x_step[3] != 1 && c->y_step[1] == 1;
    if (call->out[0]->count == 0)
        return CUP_OK;
    float *weight = weight_of(&v, last && c->channels == 1 && c->results == 1);
    float *bias = cup__malloc((size_t)all * sizeof *bias);
    if (bias && c->bias)
        cup__conv_load(bias, c->bias, c->bias_step, all, v.dtype);
    for (int i = 0; weight && bias && i < conv_classes(&c->side[0], c->back); i++)
        for (int k = 0; good && k < conv_classes(&c->side[1], c->back); k++) {
            job j = {.weight = weight, .bias = c->bias ? bias : NULL};
            good = cup__conv_class_make(&j.at, &v, i, k);
            int64_t rows = (int64_t)j.at.line[0].count * c->images * (takes_all(&j.at) ? 1 : all);
            int64_t work = j.at.line[1].count * (j.at.depth + 1) * (takes_all(&j.at) ? all : 1);
            if (good)
                cup__parallel_for(rows, 1 + 16384 / work, run_rows, &j);
            good = good && !atomic_load(&j.no_memory);
            cup__conv_class_free(&j.at);
        }
    good = good && weight && bias;
    cup__free(weight);
    cup__free(bias);
    return good ? CUP_OK : cup__call_fail(call, CUP_MEMORY, "out of host memory for rows");
}

/* dweight of one result and channel. */
static bool run_pair(const job *j, int64_t index)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    const conv_line *high = &l->line[0], *wide = &l->line[1];
    int64_t channel = index % c->channels, result = index / c->channels;
    int64_t size = cup_dtype_size(l->dtype), taps = (int64_t)high->taps * wide->taps, row;
    double *sum = cup__calloc((size_t)taps, sizeof *sum);
    float *x_space = cup__malloc((size_t)(wide->size + wide->count + 1) * sizeof *x_space);
    for (int64_t p = 0; sum && x_space && p < (int64_t)c->images * high->count; p++) {
        int64_t image = p / high->count, place = p % high->count;
        const float *dy = row_at(l, c->w, c->w_step,
                                 image * c->w_step[0] + result * c->w_step[1], place, wide->count,
                                 x_space + wide->size);
        int64_t at = image * c->x_step[0] + result / c->results * c->x_group +
                     channel * c->x_step[1];
        for (int s = 0; s < high->taps; s++) {
            if (!row_inside(high, place, s, &row))
                continue;
            const float *x = row_at(l, c->x, c->x_step, at, row, wide->size, x_space);
            for (int t = 0; t < wide->taps; t++) {
                int64_t first = l->begin[t], count = l->end[t] - first;
                const float *from = x + wide->from + first * wide->step + t * wide->tap_step;
                sum[s * wide->taps + t] +=
                    count > 0 ? (double)dot(from, wide->step, dy + first, count) : 0;
            }
        }
    }
    for (int64_t t = 0; sum && x_space && t < taps; t++) {
        float value = (float)sum[t];
        int64_t to = result * c->y_step[0] + channel * c->y_step[1] +
                     t / wide->taps * c->y_step[2] + t % wide->taps * c->y_step[3];
        cup__store_f32((char *)c->y + to * size, &value, l->dtype, 1);
    }
    bool good = sum && x_space;
    cup__free(sum);
    cup__free(x_space);
    return good;
}

static void run_pairs(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    for (int64_t i = begin; i < end; i++)
        if (!run_pair(j, i))
            atomic_store(&j->no_memory, 1);
}

/* What the rows of dy of a part add, where channels are neighbours and one a group. */
static void run_part(const job *j, int64_t part, float *x, float *dy)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    const conv_line *high = &l->line[0], *wide = &l->line[1];
    int64_t size = cup_dtype_size(l->dtype), width = c->groups, row;
    int64_t all = (int64_t)c->images * high->count, end = (part + 1) * j->rows;
    float *sum = j->parts + part * high->taps * wide->taps * width;
    memset(sum, 0, (size_t)(high->taps * wide->taps * width) * sizeof *sum);
    for (int64_t p = part * j->rows; p < end && p < all; p++) {
        int64_t image = p / high->count, place = p % high->count;
        for (int64_t i = 0; i < wide->count; i++)
            cup__load_f32(dy + i * width,
                          (const char *)c->w + (image * c->w_step[0] + place * c->w_step[2] +
                                                i * c->w_step[3]) * size, l->dtype, width);
        for (int s = 0; s < high->taps; s++) {
            if (!row_inside(high, place, s, &row))
                continue;
            for (int64_t i = 0; i < wide->size; i++)
                cup__load_f32(x + i * width,
                              (const char *)c->x + (image * c->x_step[0] + row * c->x_step[2] +
                                                    i * c->x_step[3]) * size, l->dtype, width);
            for (int t = 0; t < wide->taps; t++)
                for (int64_t i = l->begin[t]; i < l->end[t]; i++)
                    add_products(sum + (s * wide->taps + t) * width,
                                 x + (wide->from + i * wide->step + t * wide->tap_step) * width,
                                 dy + i * width, width);
        }
    }
}

static void run_parts(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int64_t width = j->at.call.groups;
    int64_t floats = (j->at.line[1].size + j->at.line[1].count) * width;
    float *x = cup__malloc((size_t)(floats + 1) * sizeof *x);
    if (!x) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        run_part(j, i, x, x + j->at.line[1].size * width);
    cup__free(x);
}

/* All channels at once: parts of the rows, summed in order. */
static void run_by_channels(job *j)
{
    const conv_call *c = &j->at.call;
    int64_t width = c->groups, wide = c->side[1].taps, taps = c->side[0].taps * wide;
    int64_t all = (int64_t)c->images * j->at.line[0].count;
    j->rows = (all + PARTS - 1) / PARTS;
    int64_t parts = (all + j->rows - 1) / j->rows;
    j->parts = cup__malloc((size_t)(parts * taps * width) * sizeof *j->parts);
    if (!j->parts) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    cup__parallel_for(parts, 1, run_parts, j);
    for (int64_t i = 1; i < parts; i++)
        cup__floats_add_scaled(j->parts, j->parts + i * taps * width, 1, taps * width);
    for (int64_t t = 0; t < taps; t++)
        cup__conv_store((char *)c->y + (t / wide * c->y_step[2] + t % wide * c->y_step[3]) *
                                           cup_dtype_size(j->at.dtype),
                        c->y_step[0], j->parts + t * width, width, j->at.dtype);
    cup__free(j->parts);
}

static cup_status run_weight(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    job j = {0};
    if (call->out[0]->count == 0)
        return CUP_OK;
    bool good = cup__conv_class_make(&j.at, &v, 0, 0);
    bool last = c->x_step[1] == 1 && c->x_step[3] != 1 && c->w_step[1] == 1;
    if (good && last && c->channels == 1 && c->results == 1 && c->images > 0)
        run_by_channels(&j);
    else if (good)
        cup__parallel_for((int64_t)c->groups * c->results * c->channels, 1, run_pairs, &j);
    cup__conv_class_free(&j.at);
    return good && !atomic_load(&j.no_memory)
               ? CUP_OK
               : cup__call_fail(call, CUP_MEMORY, "out of host memory for rows");
}

cup_status cup__conv_weight_direct(cup__call *call)
{
    return cup__conv_weight_apart(call, run_weight);
}
