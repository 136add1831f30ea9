/* Where the largest elements stand that pooling takes along one and three dimensions: against plain
 * loops, of random sizes, with many equal elements and some NaN. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { MOST = 4000, DRAWS = 60 };

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static unsigned state = 20261124;

static int below(int n)
{
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (unsigned)n);
}

/* Depth, height and width; of one dimension the first two are 1. */
typedef struct draw {
    int sides;
    bool last, ceil;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3], n, channels;
} draw;

static draw drawn(int sides)
{
    draw d = {.sides = sides, .last = below(2), .ceil = below(2), .n = 1 + below(2),
              .channels = 1 + below(3)};
    for (int i = 0; i < 3; i++) {
        bool used = i >= 3 - sides;
        d.window[i] = used ? 1 + below(3) : 1;
        d.stride[i] = used ? 1 + below(3) : 1;
        d.padding[i] = used ? below((int)d.window[i] / 2 + 1) : 0;
        d.dilation[i] = used ? 1 + below(2) : 1;
        d.in[i] = used ? (d.window[i] - 1) * d.dilation[i] + 1 + below(4) : 1;
    }
    return d;
}

/* The element of channel k at a place, in x and in what is read of it. */
static int64_t offset_of(const draw *d, int64_t n, int64_t k, int64_t place)
{
    int64_t places = d->in[0] * d->in[1] * d->in[2];
    return d->last ? (n * places + place) * d->channels + k
                   : (n * d->channels + k) * places + place;
}

/* The place that a window takes; it begins at those numbers. */
static int64_t best_of(const draw *d, const float *x, int64_t n, int64_t k, const int64_t from[3])
{
    int64_t best = -1;
    for (int64_t i = 0; i < d->window[0] * d->window[1] * d->window[2]; i++) {
        int64_t at[3] = {i / d->window[2] / d->window[1], i / d->window[2] % d->window[1],
                         i % d->window[2]};
        bool inside = true;
        for (int s = 0; s < 3; s++) {
            at[s] = from[s] + at[s] * d->dilation[s];
            inside = inside && at[s] >= 0 && at[s] < d->in[s];
        }
        int64_t place = (at[0] * d->in[1] + at[1]) * d->in[2] + at[2];
        if (!inside)
            continue;
        float value = x[offset_of(d, n, k, place)];
        float most = best < 0 ? -INFINITY : x[offset_of(d, n, k, best)];
        if (best < 0 || value > most || (isnan(value) && !isnan(most)))
            best = place;
    }
    return best;
}

static void expect_places(const draw *d, const float *x, cup_tensor *y, cup_tensor *at)
{
    static int64_t places[MOST];
    static float values[MOST];
    int64_t count = cup_tensor_count(at), out[3] = {1, 1, 1};
    EXPECT(count == cup_tensor_count(y) && count <= MOST && count > 0);
    for (int s = 3 - d->sides; s < 3; s++)
        out[s] = cup_tensor_size(y, (d->last ? 1 : 2) + s - 3 + d->sides);
    EXPECT_INT(cup_tensor_read(at, places, (size_t)count * sizeof *places), CUP_OK);
    EXPECT_INT(cup_tensor_read(y, values, (size_t)count * sizeof *values), CUP_OK);
    int64_t each = out[0] * out[1] * out[2];
    for (int64_t i = 0; i < count; i++) {
        int64_t k = d->last ? i % d->channels : i / each % d->channels;
        int64_t n = i / d->channels / each, p = d->last ? i / d->channels % each : i % each;
        const int64_t o[3] = {p / out[2] / out[1], p / out[2] % out[1], p % out[2]};
        int64_t from[3];
        for (int s = 0; s < 3; s++)
            from[s] = o[s] * d->stride[s] - d->padding[s];
        int64_t want = best_of(d, x, n, k, from);
        EXPECT_INT(places[i], want);
        if (want >= 0) {
            float value = x[offset_of(d, n, k, want)];
            EXPECT((isnan(value) && isnan(values[i])) || value == values[i]);
        }
    }
}

static void check(const char *name, int sides)
{
    static float x[MOST];
    cup_context *c = device(name);
    for (int i = 0; i < DRAWS; i++) {
        draw d = drawn(sides);
        int first = 3 - sides;
        int64_t shape[5] = {d.n, d.channels}, count = d.n * d.channels;
        for (int s = first; s < 3; s++) {
            shape[(d.last ? 1 : 2) + s - first] = d.in[s];
            count *= d.in[s];
        }
        if (d.last)
            shape[1 + sides] = d.channels;
        EXPECT(count <= MOST);
        for (int64_t k = 0; k < count; k++)
            x[k] = below(40) ? (float)below(5) : NAN;
        const cup_max_pool2d_options o = {.size = sizeof o, .stride = {d.stride + first, sides},
                                          .padding = {d.padding + first, sides},
                                          .dilation = {d.dilation + first, sides},
                                          .ceil_mode = d.ceil, .channels_last = d.last};
        cup_scope_open(c);
        cup_tensor *t = cup_tensor_from(c, CUP_F32, 2 + sides, shape, x), *y = NULL, *at = NULL;
        if (sides == 1)
            cup_max_pool1d_indices(c, t, d.window[2], &o, &y, &at);
        else
            cup_max_pool3d_indices(c, t, d.window, 3, &o, &y, &at);
        EXPECT_TEXT(cup_error_text(c), "");
        expect_places(&d, x, y, at);
        cup_scope_close(c);
    }
    cup_context_free(c);
}

/* What is taken goes back to where it stood; so do gradients. */
static void check_back(const char *name)
{
    cup_context *c = device(name);
    float values[2 * 4 * 4 * 4], got[2 * 4 * 4 * 4], slopes[2 * 4 * 4 * 4];
    for (int i = 0; i < 128; i++)
        values[i] = (float)(i * 37 % 128) + 1;
    for (int last = 0; last < 2; last++) {
        const int64_t shape[] = {1, last ? 4 : 2, 4, 4, last ? 2 : 4}, size[] = {4, 4, 4};
        cup_tensor *x = cup_tensor_from(c, CUP_F32, 5, shape, values), *y, *at, *grad;
        cup_require_grad(x);
        cup_max_pool3d_indices(c, x, (int64_t[]){2}, 1,
                               CUP_OPTIONS(cup_max_pool2d_options, .channels_last = last), &y, &at);
        cup_tensor *back = cup_max_unpool3d(c, y, at, size, last);
        EXPECT_INT(cup_gradients(c, cup_sum(c, cup_square(c, back), NULL, 0, false), &x, 1, &grad),
                   CUP_OK);
        EXPECT_INT(cup_tensor_read(back, got, sizeof got), CUP_OK);
        EXPECT_INT(cup_tensor_read(grad, slopes, sizeof slopes), CUP_OK);
        int there = 0;
        for (int i = 0; i < 128; i++) {
            EXPECT(got[i] == 0 || got[i] == values[i]);
            EXPECT_NEAR(slopes[i], 2 * got[i], 1e-5);
            there += got[i] != 0;
        }
        EXPECT_INT(there, 16);
    }
    cup_tensor *line = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){1, 1, 6}, values), *y, *at;
    cup_max_pool1d_indices(c, line, 3, NULL, &y, &at);
    cup_tensor *back = cup_max_unpool1d(c, y, at, 6, false);
    EXPECT_INT(cup_tensor_read(back, got, 6 * sizeof *got), CUP_OK);
    int there = 0;
    for (int i = 0; i < 6; i++) {
        EXPECT(got[i] == 0 || got[i] == values[i]);
        there += got[i] != 0;
    }
    EXPECT_INT(there, 2);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, back, NULL, 0, false)),
                cup_tensor_item(cup_sum(c, y, NULL, 0, false)), 1e-5);
    cup_context_free(c);
}

TEST(pool_indices_of_lines_and_space)
{
    check("cpu", 1);
    check("cpu", 3);
    check_back("cpu");
}

TEST(gpu_pool_indices_of_lines_and_space)
{
    check("cuda", 1);
    check("cuda", 3);
    check_back("cuda");
}

TEST(pool_indices_refuse)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_ones(c, CUP_F32, 3, (int64_t[]){1, 1, 4}), *y = x, *at = x;
    EXPECT_INT(cup_max_pool3d_indices(c, x, (int64_t[]){2}, 1, NULL, &y, &at), CUP_SHAPE);
    EXPECT(!y && !at);
    cup_error_clear(c);
    EXPECT(cup_max_pool1d_indices(c, x, 9, NULL, &y, &at) != CUP_OK && !y && !at);
    cup_error_clear(c);
    EXPECT_INT(cup_max_pool1d_indices(c, x, 2, NULL, &y, NULL), CUP_OK);
    EXPECT(y != NULL);
    EXPECT(cup_max_pool1d_indices(NULL, x, 2, NULL, &y, &at) != CUP_OK);
    EXPECT(!cup_max_unpool3d(c, x, x, NULL, false));
    cup_error_clear(c);
    EXPECT(!cup_max_unpool1d(c, x, x, 0, false));
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_context_free(c);
}
