/* The elements that the places of a convolution read, laid out as a matrix, and its product. */
#include <string.h>

#include "base/half.h"
#include "base/memory.h"
#include "ops/conv_cpu/conv_cpu.h"
#include "ops/elementwise/pointwise.h"
#include "ops/matmul/product_cpu_kernel.h"
#include "tensor/floats.h"

/* Place number `first` is the first whose element is not before `least`. */
static int64_t first_from(const conv_line *l, int tap, int64_t least)
{
    int64_t room = least - l->from - (int64_t)tap * l->tap_step;
    int64_t place = room > 0 ? (room + l->step - 1) / l->step : 0;
    return place < l->count ? place : l->count;
}

bool cup__conv_class_make(cup__conv_class *l, const cup__conv *v, int row, int column)
{
    const conv_call *c = &v->call;
    *l = (cup__conv_class){.dtype = v->dtype, .call = *c};
    l->line[0] = conv_line_of(&c->side[0], c->back, row);
    l->line[1] = conv_line_of(&c->side[1], c->back, column);
    int taps = l->line[1].taps;
    l->places = (int64_t)l->line[0].count * l->line[1].count;
    l->depth = (int64_t)c->channels * l->line[0].taps * taps;
    l->last = c->x_step[1] == 1 && c->x_step[3] != 1 && c->y_step[1] == 1;
    l->begin = cup__calloc(2 * (size_t)taps + 1, sizeof *l->begin);
    if (!l->begin)
        return false;
    l->end = l->begin + taps;
    for (int t = 0; t < taps; t++) {
        l->begin[t] = first_from(&l->line[1], t, 0);
        l->end[t] = first_from(&l->line[1], t, l->line[1].size);
    }
    return true;
}

void cup__conv_class_free(cup__conv_class *l)
{
    cup__free(l->begin);
}

bool cup__conv_run_next(const cup__conv_class *l, int64_t place, int64_t places,
                        cup__conv_run *run)
{
    int64_t width = l->line[1].count;
    if (run->count == 0) {
        int64_t rest = place % l->places;
        *run = (cup__conv_run){place / l->places, rest / width, rest % width, 0, 0};
    } else {
        run->at += run->count;
        run->column = 0;
        if (++run->row == l->line[0].count) {
            run->row = 0;
            run->image++;
        }
    }
    run->count = width - run->column;
    if (run->count > places - run->at)
        run->count = places - run->at;
    return run->count > 0;
}

void cup__conv_load(float *to, const void *from, int64_t step, int64_t count, cup_dtype dtype)
{
    if (step == 1) {
        cup__load_f32(to, from, dtype, count);
    } else if (dtype == CUP_F32) {
        for (int64_t i = 0; i < count; i++)
            to[i] = ((const float *)from)[i * step];
    } else {
        const uint16_t *half = from;
        for (int64_t i = 0; i < count; i++)
            to[i] = dtype == CUP_BF16 ? cup__from_bf16(half[i * step])
                                      : cup__from_f16(half[i * step]);
    }
}

void cup__conv_store(void *to, int64_t step, const float *from, int64_t count, cup_dtype dtype)
{
    int64_t size = cup_dtype_size(dtype);
    if (step == 1)
        cup__store_f32(to, from, dtype, count);
    else if (dtype == CUP_F32)
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i * step] = from[i];
    else
        for (int64_t i = 0; i < count; i++)
            cup__store_f32((char *)to + i * step * size, from + i, dtype, 1);
}

/* The row of the image that tap `tap` of a place's row reads; -1 outside. */
static int64_t row_of(const conv_line *l, int64_t place, int64_t tap)
{
    int64_t row = l->from + place * l->step + tap * l->tap_step;
    return row >= 0 && row < l->size ? row : -1;
}

/* One element of the columns of some places. */
static void fill_line(const cup__conv_class *l, int64_t channel_at, int64_t tap, int64_t place,
                      int64_t places, float *to)
{
    const conv_call *c = &l->call;
    const conv_line *high = &l->line[0], *wide = &l->line[1];
    int64_t size = cup_dtype_size(l->dtype), i = tap / wide->taps, j = tap % wide->taps;
    cup__conv_run run = {0};
    while (cup__conv_run_next(l, place, places, &run)) {
        float *at = to + run.at;
        int64_t row = row_of(high, run.row, i), end = run.column + run.count;
        int64_t from = l->begin[j] > run.column ? l->begin[j] : run.column;
        int64_t stop = l->end[j] < end ? l->end[j] : end;
        if (row < 0 || from >= stop) {
            memset(at, 0, (size_t)run.count * sizeof *at);
            continue;
        }
        int64_t column = wide->from + from * wide->step + j * wide->tap_step;
        int64_t offset = channel_at + run.image * c->x_step[0] + row * c->x_step[2] +
                         column * c->x_step[3];
        for (int64_t p = run.column; p < from; p++)
            at[p - run.column] = 0;
        cup__conv_load(at + from - run.column, (const char *)c->x + offset * size,
                       wide->step * c->x_step[3], stop - from, l->dtype);
        for (int64_t p = stop; p < end; p++)
            at[p - run.column] = 0;
    }
}

/* The elements of one place, whose channels are neighbours. */
static void fill_place(const cup__conv_class *l, int64_t at, const int64_t place[2], int64_t from,
                       int64_t depth, float *to)
{
    const conv_call *c = &l->call;
    int64_t size = cup_dtype_size(l->dtype), taps = l->line[1].taps;
    while (depth > 0) {
        int64_t tap = from / c->channels, channel = from % c->channels;
        int64_t count = c->channels - channel < depth ? c->channels - channel : depth;
        int64_t row = row_of(&l->line[0], place[0], tap / taps);
        int64_t column = row_of(&l->line[1], place[1], tap % taps);
        int64_t offset = at + row * c->x_step[2] + column * c->x_step[3] + channel;
        if (row < 0 || column < 0)
            memset(to, 0, (size_t)count * sizeof *to);
        else
            cup__load_f32(to, (const char *)c->x + offset * size, l->dtype, count);
        to += count;
        from += count;
        depth -= count;
    }
}

void cup__conv_fill(const cup__conv_class *l, int64_t group, int64_t place, int64_t places,
                    int64_t from, int64_t depth, float *to)
{
    const conv_call *c = &l->call;
    int64_t taps = (int64_t)l->line[0].taps * l->line[1].taps, first = group * c->x_group;
    if (!l->last) {
        for (int64_t k = from; k < from + depth; k++, to += places)
            fill_line(l, first + k / taps * c->x_step[1], k % taps, place, places, to);
        return;
    }
    cup__conv_run run = {0};
    while (cup__conv_run_next(l, place, places, &run))
        for (int64_t i = 0; i < run.count; i++, to += depth)
            fill_place(l, first + run.image * c->x_step[0], (int64_t[]){run.row, run.column + i},
                       from, depth, to);
}

static cup__matrix strided(cup__conv_matrix m)
{
    return (cup__matrix){.data = (char *)(uintptr_t)m.data, .row = m.turned ? 1 : m.distance,
                         .column = m.turned ? m.distance : 1};
}

size_t cup__conv_space(const cup__blas *blas, int64_t m, int64_t n)
{
    return blas ? 0 : cup__kernel_space(m, n, INT64_MAX) + (size_t)(m * n) * sizeof(float);
}

void cup__conv_multiply(const cup__conv_product *p, void *space)
{
    if (p->blas) {
        p->blas->sgemm(CUP__BLAS_ROW_MAJOR, p->a.turned ? CUP__BLAS_TRANSPOSED : CUP__BLAS_PLAIN,
                       p->b.turned ? CUP__BLAS_TRANSPOSED : CUP__BLAS_PLAIN, (int)p->m, (int)p->n,
                       (int)p->k, 1, p->a.data, (int)p->a.distance, p->b.data, (int)p->b.distance,
                       p->add ? 1.0f : 0.0f, p->to, (int)p->distance);
        return;
    }
    float *sums = p->add ? space : p->to;
    cup__product one = {.dtype = CUP_F32, .y_dtype = CUP_F32, .m = p->m, .n = p->n, .k = p->k,
                        .batch_count = 1, .factor = 1};
    one.a = strided(p->a);
    one.b = strided(p->b);
    one.y = (cup__matrix){.data = (char *)sums, .row = p->add ? p->n : p->distance, .column = 1};
    cup__kernel_tile(&one, 0, &(cup__tile){0, p->m, 0, p->n}, (float *)space + p->m * p->n);
    for (int64_t i = 0; p->add && i < p->m; i++)
        cup__floats_add(p->to + i * p->distance, sums + i * p->n, p->n);
}
