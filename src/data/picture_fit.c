#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/wide.h"
#include "data/picture.h"

/* From which pixels along one side each of the other's is made, and how much of each. */
typedef struct side {
    int64_t *first, *count;
    float *weight; /* [to, most] */
    int64_t most;
} side;

static void free_side(side *s)
{
    cup__free(s->first);
    cup__free(s->count);
    cup__free(s->weight);
}

static bool make_side(int64_t from, int64_t to, side *s)
{
    double ratio = (double)from / (double)to, reach = ratio > 1 ? ratio : 1;
    s->most = (int64_t)(2 * reach) + 3;
    s->first = cup__calloc((size_t)to, sizeof *s->first);
    s->count = cup__calloc((size_t)to, sizeof *s->count);
    s->weight = cup__calloc((size_t)to, (size_t)s->most * sizeof *s->weight);
    if (!s->first || !s->count || !s->weight)
        return false;
    for (int64_t i = 0; i < to; i++) {
        double middle = ((double)i + 0.5) * ratio, sum = 0;
        int64_t begin = (int64_t)fmax(0, floor(middle - reach));
        int64_t end = (int64_t)fmin((double)from, ceil(middle + reach));
        float *weight = s->weight + i * s->most;
        s->first[i] = begin;
        s->count[i] = end - begin;
        for (int64_t k = begin; k < end; k++) {
            double part = 1 - fabs((double)k + 0.5 - middle) / reach;
            weight[k - begin] = (float)fmax(0, part);
            sum += fmax(0, part);
        }
        for (int64_t k = 0; k < end - begin; k++)
            weight[k] = (float)(weight[k] / sum);
    }
    return true;
}

/* A row in numbers with `channels` of them, one made of three or three of one. */
CUP__WIDE static void read_row(const uint8_t *from, int64_t width, int64_t had, int64_t channels,
                               float *to)
{
    if (had == channels)
        for (int64_t i = 0; i < width * channels; i++)
            to[i] = from[i];
    else
        for (int64_t x = 0; x < width; x++, from += had)
            for (int64_t c = 0; c < channels; c++)
                *to++ = had == 1 ? from[0] : 0.299f * from[0] + 0.587f * from[1] + 0.114f * from[2];
}

#define LANES 4
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A row becomes as wide as it shall be, in the order of its sums from left to right. All channels
 * are made at once, and what is read and written behind them is of no use. */
static void fit_row(const float *from, const side *s, int64_t width, int64_t channels, float *to)
{
    for (int64_t x = 0; x < width; x++, to += channels) {
        const float *weight = s->weight + x * s->most, *at = from + s->first[x] * channels;
        lanes sum = {0};
        for (int64_t k = 0; k < s->count[x]; k++, at += channels)
            sum += weight[k] * *(const lanes *)at;
        *(lanes *)to = sum;
    }
}

CUP__WIDE static void add_row(const float *row, float weight, int64_t count, float *sum)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] += weight * row[i];
}

/* Means of bytes are from 0 to 255 but for rounding. */
CUP__WIDE static void write_row(const float *sum, int64_t count, uint8_t *to)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t value = (int32_t)(sum[i] + 0.5f);
        to[i] = (uint8_t)(value < 255 ? value : 255);
    }
}

/* `line` has memory for a row of `from`, `sum` for one of `to` and behind it for all rows of `from`
 * that are as wide; both for LANES more. */
static void fit(const cup__picture *from, const cup__picture *to, const side *across,
                const side *down, float *line, float *sum)
{
    int64_t count = to->width * to->channels;
    float *rows = sum + count;
    for (int64_t y = 0; y < from->height; y++) {
        read_row(from->pixels + y * from->width * from->channels, from->width, from->channels,
                 to->channels, line);
        fit_row(line, across, to->width, to->channels, rows + y * count);
    }
    for (int64_t y = 0; y < to->height; y++) {
        memset(sum, 0, (size_t)count * sizeof *sum);
        for (int64_t k = 0; k < down->count[y]; k++)
            add_row(rows + (down->first[y] + k) * count, down->weight[y * down->most + k], count,
                    sum);
        write_row(sum, count, to->pixels + y * count);
    }
}

cup_status cup__picture_fit(cup__error *error, const cup__picture *from, cup__picture *to)
{
    size_t row = (size_t)(to->width * to->channels);
    if (from->height == to->height && from->width == to->width &&
        from->channels == to->channels) {
        memcpy(to->pixels, from->pixels, (size_t)to->height * row);
        return CUP_OK;
    }
    side across = {0}, down = {0};
    float *line = cup__calloc((size_t)from->width + LANES, (size_t)to->channels * sizeof *line);
    float *sum = cup__calloc((size_t)from->height + 1 + LANES, row * sizeof *sum);
    bool made = line && sum && make_side(from->width, to->width, &across) &&
                make_side(from->height, to->height, &down);
    if (made)
        fit(from, to, &across, &down, line, sum);
    free_side(&across);
    free_side(&down);
    cup__free(line);
    cup__free(sum);
    return made ? CUP_OK : cup__no_memory(error, "scaling an image");
}
