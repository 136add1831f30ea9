/* Convolutions of few results, whose image a GPU brings once for all taps: sizes drawn about those
 * of tiles and channels, held against double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ahead.h"
#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"

enum { DRAWN = 60, LEAST = 30 };

typedef struct drawn {
    int64_t images, channels, results, side[2], taps[2];
    int padding, dilation[2];
    bool biased;
    cup_dtype dtype;
} drawn;

static int64_t from_to(int64_t least, int64_t most)
{
    return least + (int64_t)(test_uniform(0, 1) * (double)(most - least + 1));
}

static drawn draw(int number)
{
    drawn d = {.images = from_to(1, 3), .channels = 8 * from_to(2, 26),
               .results = 8 * from_to(2, 16), .padding = (int)from_to(0, 3),
               .biased = number % 2, .dtype = number % 3 ? CUP_BF16 : CUP_F16};
    for (int i = 0; i < 2; i++) {
        d.taps[i] = from_to(1, 4);
        d.dilation[i] = (int)from_to(1, 2);
        d.side[i] = from_to(1 + (d.taps[i] - 1) * d.dilation[i], 70);
    }
    if (number % 4 == 0)
        d.results = 64;
    if (number % 2) { /* as the gradient of the weight has to have it */
        d.channels = 8 * from_to(2, 16);
        for (int i = 0; i < 2; i++) {
            d.taps[i] = d.taps[i] < 4 ? d.taps[i] : 3;
            d.side[i] = 8 * from_to(1, 8) + (d.taps[i] - 1) * d.dilation[i] - 2 * d.padding;
            d.side[i] += d.side[i] < 1 ? 8 : 0;
        }
    }
    return d;
}

/* Random numbers of 16 bits, with channels last. */
static cup_tensor *image_of(cup_context *c, cup_dtype dtype, int64_t images, int64_t channels,
                            const int64_t side[2])
{
    cup_tensor *t = cup_cast(
        c, cup_normal(c, CUP_F32, 4, (int64_t[]){images, side[0], side[1], channels}, 0, 1), dtype);
    return cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4);
}

/* y and the gradients of the sum of y dy by x and weight: as they are, of the same numbers as
 * doubles, or of their sizes. */
static void results_of(cup_context *c, const drawn *d, cup_tensor *const in[4], bool exact,
                       bool sizes, cup_tensor *out[3])
{
    cup_tensor *t[4];
    for (int i = 0; i < 4; i++) {
        t[i] = exact && in[i] ? cup_cast(c, in[i], CUP_F64) : in[i];
        t[i] = sizes && in[i] ? cup_abs(c, t[i]) : t[i];
    }
    cup_require_grad(t[0]);
    cup_require_grad(t[1]);
    out[0] = cup_conv2d(c, t[0], t[1], t[2],
                        CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(d->padding),
                                    .dilation = CUP_INTS(d->dilation[0], d->dilation[1])));
    cup_tensor *loss = cup_sum(c, cup_mul(c, out[0], t[3]), NULL, 0, false);
    cup_gradients(c, loss, (cup_tensor *[]){t[0], t[1]}, 2, &out[1]);
}

static double *read(cup_context *c, cup_tensor *t, int64_t *count)
{
    cup_tensor *all = cup_copy(c, cup_cast(c, t, CUP_F64));
    *count = cup_tensor_count(all);
    double *numbers = malloc((size_t)*count * sizeof(double));
    EXPECT(numbers);
    EXPECT_INT(cup_tensor_read(all, numbers, (size_t)*count * sizeof(double)), CUP_OK);
    return numbers;
}

static void expect_near(cup_context *c, const drawn *d, const char *what, double terms,
                        cup_tensor *got, cup_tensor *want, cup_tensor *size)
{
    int64_t count;
    double *g = read(c, got, &count), *w = read(c, want, &count), *s = read(c, size, &count);
    double rounded = d->dtype == CUP_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(g[i] - w[i]) <= rounded * fabs(w[i]) + (8 + sqrt(terms)) * 0x1p-23 * s[i]))
            test_fail(__FILE__, __LINE__,
                      "%s at %lld is %g for %g: %lldx%lldx%lldx%lld by %lld of %lldx%lld, padding "
                      "%d, dilation %d,%d",
                      what, (long long)i, g[i], w[i], (long long)d->images,
                      (long long)d->channels, (long long)d->side[0], (long long)d->side[1],
                      (long long)d->results, (long long)d->taps[0], (long long)d->taps[1],
                      d->padding, d->dilation[0], d->dilation[1]);
    free(g);
    free(w);
    free(s);
}

static bool is_halo(cup_context *c, const char *op, cup_tensor **in, int count, const void *a)
{
    cup__call call;
    cup__call_begin(&call, c, cup__row_find(op), in, count, a);
    const cup__impl *impl = cup__call_choose(&call);
    return impl && !strcmp(impl->name, "halo");
}

/* How many of forward and the weight's gradient are taken: a weight may be too large, or the sides
 * of dy no multiples of steps. */
static void count_taken(cup_context *c, const drawn *d, cup_tensor **in, int taken[2])
{
    cup__conv2d_attributes a = {.padding = {d->padding}, .padding_count = 1,
                                .dilation = {d->dilation[0], d->dilation[1]},
                                .dilation_count = 2, .groups = 1};
    cup__conv2d_weight_grad_attributes b = {.padding = {d->padding}, .padding_count = 1,
                                            .dilation = {d->dilation[0], d->dilation[1]},
                                            .dilation_count = 2, .groups = 1,
                                            .kernel = {d->taps[0], d->taps[1]},
                                            .kernel_count = 2};
    taken[0] += is_halo(c, "conv2d", in, 3, &a);
    taken[1] += is_halo(c, "conv2d_weight_grad", (cup_tensor *[]){in[3], in[0], NULL}, 3, &b);
}

static void check(cup_context *c, const drawn *d, int taken[2])
{
    cup_tensor *got[3], *want[3], *size[3];
    int64_t out[2];
    for (int i = 0; i < 2; i++)
        out[i] = d->side[i] + 2 * d->padding - (d->taps[i] - 1) * d->dilation[i];
    cup_tensor *x = image_of(c, d->dtype, d->images, d->channels, d->side);
    cup_tensor *dy = image_of(c, d->dtype, d->images, d->results, out);
    cup_tensor *w = image_of(c, d->dtype, d->results, d->channels, d->taps);
    cup_tensor *b = cup_cast(c, cup_normal(c, CUP_F32, 1, &d->results, 0, 1), d->dtype);
    cup_tensor *in[] = {x, w, d->biased ? b : NULL, dy};
    count_taken(c, d, in, taken);
    results_of(c, d, in, true, false, want);
    results_of(c, d, in, true, true, size);
    results_of(c, d, in, false, false, got);
    EXPECT_TEXT(cup_error_text(c), "");
    if (test_noted)
        return;
    double taps = (double)(d->taps[0] * d->taps[1]), places = (double)(d->images * out[0] * out[1]);
    expect_near(c, d, "y", taps * (double)d->channels, got[0], want[0], size[0]);
    expect_near(c, d, "dx", taps * (double)d->results, got[1], want[1], size[1]);
    expect_near(c, d, "dweight", places, got[2], want[2], size[2]);
}

static void check_all(cup_context *c, const drawn *all)
{
    int taken[2] = {0};
    for (int i = 0; i < DRAWN; i++) {
        cup_scope_open(c);
        check(c, &all[i], taken);
        cup_scope_close(c);
    }
    EXPECT(taken[0] >= LEAST && taken[1] >= LEAST / 2);
}

TEST_LIMITED(gpu_convolutions_of_few_results_at_drawn_sizes, 120)
{
    drawn all[DRAWN];
    for (int i = 0; i < DRAWN; i++)
        all[i] = draw(i);
    setenv("CUP_IMPL", "conv2d=halo,conv2d_input_grad=halo,conv2d_weight_grad=halo", 1);
    TEST_AHEAD {
        cup_context *c = test_noted;
        if (!c)
            c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        check_all(c, all);
        if (!test_noted)
            cup_context_free(c);
    }
}
