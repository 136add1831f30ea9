#include <math.h>
#include <string.h>

#include "base/memory.h"
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

/* The channels of a pixel, one made of three or three of one. */
static float pixel(const cup__picture *from, int64_t place, int64_t channels, int64_t channel)
{
    const uint8_t *p = from->pixels + place * from->channels;
    if (channels == from->channels)
        return p[channel];
    return from->channels == 1 ? p[0] : 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

/* Rows become as wide as they shall be, [height of `from`, width of `to`, channels of `to`]. */
static void fit_width(const cup__picture *from, const cup__picture *to, const side *s, float *rows)
{
    for (int64_t y = 0; y < from->height; y++)
        for (int64_t x = 0; x < to->width; x++)
            for (int64_t c = 0; c < to->channels; c++) {
                float sum = 0;
                for (int64_t k = 0; k < s->count[x]; k++)
                    sum += s->weight[x * s->most + k] *
                           pixel(from, y * from->width + s->first[x] + k, to->channels, c);
                *rows++ = sum;
            }
}

static void fit_height(const cup__picture *to, const side *s, const float *rows)
{
    int64_t width = to->width * to->channels;
    for (int64_t y = 0; y < to->height; y++)
        for (int64_t x = 0; x < width; x++) {
            float sum = 0;
            for (int64_t k = 0; k < s->count[y]; k++)
                sum += s->weight[y * s->most + k] * rows[(s->first[y] + k) * width + x];
            to->pixels[y * width + x] = (uint8_t)fminf(255, fmaxf(0, floorf(sum + 0.5f)));
        }
}

cup_status cup__picture_fit(cup__error *error, const cup__picture *from, cup__picture *to)
{
    size_t row = (size_t)(to->width * to->channels), count;
    if (from->height == to->height && from->width == to->width &&
        from->channels == to->channels) {
        memcpy(to->pixels, from->pixels, (size_t)to->height * row);
        return CUP_OK;
    }
    side across = {0}, down = {0};
    float *rows = cup__multiply((size_t)from->height, row * sizeof *rows, &count)
                      ? cup__malloc(count)
                      : NULL;
    bool made = rows && make_side(from->width, to->width, &across) &&
                make_side(from->height, to->height, &down);
    if (made) {
        fit_width(from, to, &across, rows);
        fit_height(to, &down, rows);
    }
    free_side(&across);
    free_side(&down);
    cup__free(rows);
    return made ? CUP_OK : cup__no_memory(error, "scaling an image");
}
