/* Batches of images: which ones, and how each is changed. Both follow from the seed and the number
 * of the sample alone. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "data/images.h"
#include "data/permutation.h"
#include "tensor/context.h"

#define ORDER_KEY UINT32_C(0x1a6e0000)
#define CHANGE_KEY UINT32_C(0x1a6e0001)

/* What becomes of one image. */
typedef struct change {
    bool flip;
    int64_t down, right;   /* by which it is moved */
    bool turns;            /* by the matrix, about the middle */
    float matrix[4];       /* from places of the result to those of the source */
    float brightness, contrast, saturation; /* factors */
    bool recolors;
    int64_t erase[4];      /* top, left, height, width; of no height: none */
} change;

typedef struct draws {
    uint64_t seed, sample;
    uint32_t block;
    int used;
    cup__philox_words words;
} draws;

/* From low up to high. */
static float draw(draws *d, double low, double high)
{
    if (d->used == 4 || d->block == 0) {
        d->words = cup__philox(d->seed, (uint32_t)d->sample, (uint32_t)(d->sample >> 32),
                               CHANGE_KEY, d->block++);
        d->used = 0;
    }
    return (float)(low + (high - low) * (double)cup__philox_uniform(d->words.at[d->used++]));
}

static void draw_erased(const cup_images *images, draws *d, int64_t erase[4])
{
    float area = draw(d, 0.02, 0.2), shape = expf(draw(d, -1.2, 1.2));
    double pixels = (double)area * (double)images->height * (double)images->width;
    int64_t height = (int64_t)lround(sqrt(pixels * (double)shape));
    int64_t width = (int64_t)lround(sqrt(pixels / (double)shape));
    height = height < 1 ? 1 : height < images->height ? height : images->height;
    width = width < 1 ? 1 : width < images->width ? width : images->width;
    erase[0] = (int64_t)draw(d, 0, (double)(images->height - height + 1));
    erase[1] = (int64_t)draw(d, 0, (double)(images->width - width + 1));
    erase[2] = height;
    erase[3] = width;
}

/* All draws are made whatever is asked for, so that one setting does not move those of another. */
static void draw_change(const cup_images *images, const cup_augmentation *a, draws *d, change *out)
{
    double shift = (double)(2 * a->crop + 1);
    int64_t erase[4];
    *out = (change){0};
    out->flip = draw(d, 0, 1) < 0.5f && a->flip;
    out->down = (int64_t)draw(d, 0, shift) - a->crop;
    out->right = (int64_t)draw(d, 0, shift) - a->crop;
    float angle = draw(d, -a->rotate, a->rotate) * 0.017453292f;
    float size = 1 + draw(d, -a->scale, a->scale);
    out->turns = a->rotate > 0 || a->scale > 0;
    out->matrix[0] = cosf(angle) / size;
    out->matrix[1] = -sinf(angle) / size;
    out->matrix[2] = sinf(angle) / size;
    out->matrix[3] = cosf(angle) / size;
    out->brightness = 1 + draw(d, -a->color, a->color);
    out->contrast = 1 + draw(d, -a->color, a->color);
    out->saturation = 1 + draw(d, -a->color, a->color);
    out->recolors = a->color > 0;
    bool erases = draw(d, 0, 1) < (float)a->erase;
    draw_erased(images, d, erase);
    if (erases)
        memcpy(out->erase, erase, sizeof erase);
}

static void move_rows(const cup_images *images, const change *ch, const uint8_t *from, uint8_t *to)
{
    int64_t height = images->height, width = images->width, channels = images->channels;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++, to += channels) {
            int64_t sy = y - ch->down, sx = x - ch->right;
            bool inside = sy >= 0 && sy < height && sx >= 0 && sx < width;
            if (ch->flip)
                sx = width - 1 - sx;
            for (int64_t k = 0; k < channels; k++)
                to[k] = inside ? from[(sy * width + sx) * channels + k] : 0;
        }
}

/* A place of the source between four pixels; 0 lies around it. */
static float between(const cup_images *images, const uint8_t *from, float y, float x, int64_t k)
{
    int64_t top = (int64_t)floorf(y), left = (int64_t)floorf(x);
    float sum = 0;
    for (int64_t i = top; i < top + 2; i++)
        for (int64_t j = left; j < left + 2; j++)
            if (i >= 0 && i < images->height && j >= 0 && j < images->width)
                sum += (1 - fabsf(y - (float)i)) * (1 - fabsf(x - (float)j)) *
                       from[(i * images->width + j) * images->channels + k];
    return sum;
}

static void turn(const cup_images *images, const change *ch, const uint8_t *from, uint8_t *to)
{
    float half_y = (float)(images->height - 1) / 2, half_x = (float)(images->width - 1) / 2;
    for (int64_t y = 0; y < images->height; y++)
        for (int64_t x = 0; x < images->width; x++, to += images->channels) {
            float dy = (float)(y - ch->down) - half_y, dx = (float)(x - ch->right) - half_x;
            float sy = ch->matrix[0] * dy + ch->matrix[1] * dx;
            float sx = ch->matrix[2] * dy + ch->matrix[3] * dx;
            if (ch->flip)
                sx = -sx;
            for (int64_t k = 0; k < images->channels; k++)
                to[k] = (uint8_t)(between(images, from, sy + half_y, sx + half_x, k) + 0.5f);
        }
}

static uint8_t byte_of(float value)
{
    return (uint8_t)(fminf(255, fmaxf(0, value)) + 0.5f);
}

static float grey(const uint8_t *p, int64_t channels)
{
    return channels == 1 ? p[0] : 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
}

static void recolor(const cup_images *images, const change *ch, uint8_t *to)
{
    int64_t pixels = images->height * images->width, channels = images->channels;
    float sum = 0;
    for (int64_t i = 0; i < pixels; i++)
        sum += grey(to + i * channels, channels);
    float mean = sum / (float)pixels * ch->brightness;
    for (int64_t i = 0; i < pixels; i++) {
        uint8_t *p = to + i * channels;
        float own = grey(p, channels) * ch->brightness;
        for (int64_t k = 0; k < channels; k++) {
            float value = own + (p[k] * ch->brightness - own) * ch->saturation;
            p[k] = byte_of(mean + (value - mean) * ch->contrast);
        }
    }
}

static void erase(const cup_images *images, const change *ch, uint8_t *to)
{
    for (int64_t y = ch->erase[0]; y < ch->erase[0] + ch->erase[2]; y++)
        memset(to + (y * images->width + ch->erase[1]) * images->channels, 0,
               (size_t)(ch->erase[3] * images->channels));
}

typedef struct batch {
    const cup_images *images;
    uint64_t seed;
    int64_t first;
    bool in_order; /* as the images lie, not as an epoch has them */
    const cup_augmentation *augmentation; /* or NULL */
    uint8_t *pixels;
    int64_t *labels;
    pthread_mutex_t lock; /* of what went wrong in the first row that did */
    int64_t failed;
    cup__error error;
} batch;

static void note(batch *b, int64_t row, const cup__error *error)
{
    pthread_mutex_lock(&b->lock);
    if (b->error.status == CUP_OK || row < b->failed) {
        b->failed = row;
        b->error = *error;
    }
    pthread_mutex_unlock(&b->lock);
}

/* `room` has memory for one image. */
static cup_status make_row(const batch *b, int64_t row, uint8_t *room, cup__error *error)
{
    const cup_images *images = b->images;
    int64_t bytes = images->height * images->width * images->channels, sample = b->first + row;
    int64_t place = b->in_order ? sample
                                : cup__permuted(ORDER_KEY, b->seed,
                                                (uint64_t)(sample / images->count),
                                                sample % images->count, images->count);
    const uint8_t *from;
    uint8_t *to = b->pixels + row * bytes;
    draws d = {.seed = b->seed, .sample = (uint64_t)sample};
    change ch;
    CUP_TRY(cup__images_get(error, images, place, b->augmentation ? room : to, &from));
    if (b->labels)
        b->labels[row] = images->labels[place];
    if (!b->augmentation) {
        if (from != to)
            memcpy(to, from, (size_t)bytes);
        return CUP_OK;
    }
    draw_change(images, b->augmentation, &d, &ch);
    (ch.turns ? turn : move_rows)(images, &ch, from, to);
    if (ch.recolors)
        recolor(images, &ch, to);
    erase(images, &ch, to);
    return CUP_OK;
}

static void make_rows(int64_t begin, int64_t end, void *user)
{
    batch *b = user;
    const cup_images *images = b->images;
    cup__error error = {0};
    uint8_t *room = NULL;
    if (!images->pixels && b->augmentation) {
        room = cup__malloc((size_t)(images->height * images->width * images->channels));
        if (!room)
            cup__no_memory(&error, "a batch of images");
    }
    for (int64_t row = begin; row < end && error.status == CUP_OK; row++)
        if (make_row(b, row, room, &error) != CUP_OK)
            note(b, row, &error);
    if (!room && error.status == CUP_MEMORY)
        note(b, begin, &error);
    cup__free(room);
}

static cup_status run(cup__error *error, batch *b, int64_t rows)
{
    const cup_images *images = b->images;
    int64_t bytes = images->height * images->width * images->channels;
    pthread_mutex_init(&b->lock, NULL);
    cup__parallel_for(rows, !images->pixels || bytes > 16384 ? 1 : 16384 / bytes + 1, make_rows,
                      b);
    pthread_mutex_destroy(&b->lock);
    return b->error.status == CUP_OK ? CUP_OK
                                     : cup__fail(error, b->error.status, "%s", b->error.text);
}

cup_status cup__images_batch(cup__error *error, const cup_images *images, uint64_t seed,
                             int64_t first, int64_t rows, const cup_augmentation *augmentation,
                             uint8_t *pixels, int64_t *labels)
{
    batch b = {.images = images,
               .seed = seed,
               .first = first,
               .augmentation = augmentation,
               .pixels = pixels,
               .labels = labels};
    return run(error, &b, rows);
}

cup_status cup_images_read(cup_context *c, const cup_images *images, int64_t first, int64_t count,
                           uint8_t *pixels)
{
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!images || !pixels || first < 0 || count < 0 || first > images->count - count)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_images_read: %lld images from %lld on of %lld, or a NULL",
                         (long long)count, (long long)first, (long long)cup_images_count(images));
    batch b = {.images = images, .first = first, .in_order = true, .pixels = pixels};
    return run(&c->error, &b, count);
}

/* Ranges are closed, NaN lies in none. */
static bool in_range(double value, double low, double high)
{
    return value >= low && value <= high;
}

cup_status cup_images_batch(cup_context *c, const cup_images *images, uint64_t seed, int64_t first,
                            int64_t rows, const cup_augmentation *augmentation, uint8_t *pixels,
                            int64_t *labels)
{
    cup_augmentation a;
    if (!c)
        return CUP_MEMORY;
    if (c->error.status != CUP_OK)
        return c->error.status;
    CUP_TRY(cup__options_take(&c->error, "cup_images_batch", &a, sizeof a, augmentation));
    if (!images || !pixels || !labels || first < 0 || rows < 0 || first > INT64_MAX - rows)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_images_batch: images or a place for results are NULL, or %lld "
                         "samples from %lld on were asked for",
                         (long long)rows, (long long)first);
    if (a.crop < 0 || a.crop > 65535 || !in_range(a.rotate, 0, 180) ||
        !in_range(a.scale, 0, 0.9) || !in_range(a.color, 0, 1) || !in_range(a.erase, 0, 1))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "cup_images_batch: a number of the augmentation is out of its range: crop "
                         "0 to 65535, rotate 0 to 180, scale 0 to 0.9, color and erase 0 to 1");
    return cup__images_batch(&c->error, images, seed, first, rows, augmentation ? &a : NULL, pixels,
                             labels);
}
