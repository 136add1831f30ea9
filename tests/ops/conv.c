/* Convolutions: layouts, refusals and second derivatives, which samples cannot tell. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

static cup_tensor *drawn(cup_context *c, cup_dtype dtype, int64_t a, int64_t b, int64_t h,
                         int64_t w)
{
    return cup_uniform(c, dtype, 4, (int64_t[]){a, b, h, w}, -1, 1);
}

/* The same image, with its channels as neighbours in memory. */
static cup_tensor *channels_last(cup_context *c, cup_tensor *x)
{
    cup_tensor *turned = cup_copy(c, cup_permute(c, x, (int64_t[]){0, 2, 3, 1}, 4));
    return cup_permute(c, turned, (int64_t[]){0, 3, 1, 2}, 4);
}

/* Up to a part of the largest element. */
static void expect_near(cup_tensor *a, cup_tensor *b, double part)
{
    double most = 1;
    EXPECT(a && b && a->count == b->count);
    for (int64_t i = 0; i < b->count; i++)
        most = fmax(most, fabs(cup__load(b, cup__offset_of(b, i))));
    for (int64_t i = 0; i < a->count; i++)
        EXPECT_NEAR(cup__load(a, cup__offset_of(a, i)), cup__load(b, cup__offset_of(b, i)),
                    part * most);
}

TEST(conv_takes_channels_last_as_they_lie)
{
    static const struct {
        int64_t channels, results, groups;
    } cases[] = {{5, 7, 1}, {64, 70, 1}, {6, 4, 2}, {24, 24, 24}, {1, 16, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        int64_t channels = cases[i].channels, groups = cases[i].groups;
        cup_tensor *x = drawn(c, CUP_F32, 2, channels, 9, 10);
        cup_tensor *w = drawn(c, CUP_F32, cases[i].results, channels / groups, 3, 3);
        const cup_conv2d_options *options =
            CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(1), .stride = CUP_INTS(1, 2),
                        .groups = (int)groups);
        cup_tensor *last = channels_last(c, x), *grads[2], *grads_last[2];
        cup_tensor *y = cup_conv2d(c, x, w, NULL, options);
        cup_require_grad(last);
        cup_require_grad(w);
        cup_tensor *y_last = cup_conv2d(c, last, w, NULL, options);
        EXPECT(y_last && y_last->stride[1] == 1 && y->contiguous);
        expect_near(y, y_last, 2e-6);
        EXPECT_INT(cup_gradients(c, cup_sum(c, cup_mul(c, y_last, y_last), NULL, 0, false),
                                 (cup_tensor *[]){last, w}, 2, grads_last), CUP_OK);
        cup_require_grad(x);
        y = cup_conv2d(c, x, w, NULL, options);
        EXPECT_INT(cup_gradients(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false),
                                 (cup_tensor *[]){x, w}, 2, grads), CUP_OK);
        expect_near(grads[0], grads_last[0], 4e-6);
        expect_near(grads[1], grads_last[1], 4e-6);
        cup_context_free(c);
    }
}

/* Against the same in double precision, which is computed otherwise: images in one block and in
 * several, taps that are side by side or not, gradients of places that no tap reaches, numbers of
 * results that fill no vector, not even a short one, and weights that lie in either way. */
TEST(conv_of_many_channels_is_that_of_doubles)
{
    static const struct {
        int64_t n, channels, results, h, w, kh, kw, stride, dilation, padding;
    } cases[] = {{2, 70, 90, 9, 11, 3, 3, 1, 1, 1},  {5, 150, 20, 7, 7, 3, 3, 1, 1, 1},
                 {1, 3, 64, 40, 41, 7, 7, 2, 1, 3},  {2, 20, 33, 12, 13, 1, 1, 2, 1, 0},
                 {3, 17, 12, 10, 9, 3, 2, 3, 2, 4},  {1, 9, 130, 30, 31, 3, 3, 1, 2, 2},
                 {1, 8, 8, 5, 6, 2, 2, 4, 1, 0},     {9, 16, 16, 4, 4, 5, 5, 1, 1, 2},
                 {1, 2, 8, 112, 112, 3, 3, 1, 1, 1}, {2, 40, 3, 12, 13, 3, 3, 1, 1, 1},
                 {1, 3, 7, 20, 21, 7, 7, 2, 1, 3},   {3, 20, 1, 9, 8, 2, 3, 2, 1, 1},
                 {1, 70, 140, 7, 7, 3, 3, 1, 1, 1}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        int64_t k = (int64_t)i / 2, n = cases[k].n, channels = cases[k].channels;
        const cup_conv2d_options *o = CUP_OPTIONS(
            cup_conv2d_options, .stride = CUP_INTS(cases[k].stride),
            .dilation = CUP_INTS(cases[k].dilation), .padding = CUP_INTS(cases[k].padding));
        cup_tensor *x = drawn(c, CUP_F32, n, channels, cases[k].h, cases[k].w), *found[2][3];
        cup_tensor *w = drawn(c, CUP_F32, cases[k].results, channels, cases[k].kh, cases[k].kw);
        for (int wide = 0; wide < 2; wide++) {
            cup_tensor *in[] = {cup_cast(c, x, wide ? CUP_F64 : CUP_F32),
                                cup_cast(c, w, wide ? CUP_F64 : CUP_F32)};
            for (int d = 0; d < 2; d++) {
                in[d] = i % 2 ? channels_last(c, in[d]) : cup_copy(c, in[d]);
                cup_require_grad(in[d]);
            }
            cup_tensor *y = found[wide][0] = cup_conv2d(c, in[0], in[1], NULL, o);
            EXPECT_INT(cup_gradients(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false), in, 2,
                                     found[wide] + 1), CUP_OK);
        }
        for (int part = 0; part < 3; part++)
            expect_near(found[0][part], found[1][part], 2e-6);
        cup_context_free(c);
    }
}

TEST(conv_of_one_place_is_a_product)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = drawn(c, CUP_F32, 3, 20, 8, 9), *w = drawn(c, CUP_F32, 30, 20, 1, 1);
    cup_tensor *rows = cup_reshape(c, x, 3, (int64_t[]){3, 20, 72});
    cup_tensor *flat = cup_reshape(c, w, 2, (int64_t[]){30, 20});
    expect_near(cup_conv2d(c, x, w, NULL, NULL), cup_matmul(c, flat, rows, false, false), 2e-6);
    cup_context_free(c);
}

TEST(conv_same_pads_the_odd_one_behind)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = drawn(c, CUP_F64, 1, 2, 7, 8), *w = drawn(c, CUP_F64, 3, 2, 4, 3);
    cup_tensor *same = cup_conv2d(c, x, w, NULL, CUP_OPTIONS(cup_conv2d_options, .same = true));
    expect_near(same, cup_conv2d(c, x, w, NULL, CUP_OPTIONS(cup_conv2d_options,
                                                            .padding = CUP_INTS(1, 2, 1, 1))), 0);
    EXPECT(same->shape[2] == 7 && same->shape[3] == 8);
    same = cup_conv2d(c, x, w, NULL,
                      CUP_OPTIONS(cup_conv2d_options, .same = true, .stride = CUP_INTS(3)));
    EXPECT(same->shape[2] == 3 && same->shape[3] == 3);
    cup_context_free(c);
}

/* What lies in memory about a view, and what a window does not reach, is not read into sums. */
TEST(conv_takes_no_nan_from_beyond_its_padding)
{
    static const int64_t groups[] = {1, 4, 1}, results[] = {4, 4, 20};
    for (int i = 0; i < 3; i++)
        for (int last = 0; last < 2; last++) {
            cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
            cup_tensor *all = cup_full(c, CUP_F32, 4, (int64_t[]){3, 6, 9, 9}, NAN);
            all = last ? channels_last(c, all) : all;
            const int64_t starts[] = {1, 1, 2, 2}, sizes[] = {1, 4, 5, 5};
            cup_tensor *x = cup_slice(c, all, starts, 4, sizes, 4);
            for (int64_t e = 0; e < x->count; e++)
                cup__store(x, cup__offset_of(x, e), 1);
            cup__store(x, 0, NAN); /* channel 0, the corner */
            cup_tensor *w = cup_full(c, CUP_F32, 4, (int64_t[]){results[i], 4 / groups[i], 3, 3},
                                     1);
            cup_tensor *y = cup_conv2d(c, x, w, NULL,
                                       CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(1),
                                                   .groups = (int)groups[i]));
            for (int64_t e = 0; e < y->count; e++) {
                int64_t row = e / 5 % 5, column = e % 5, result = e / 25 % results[i];
                bool reached = row < 2 && column < 2 && (groups[i] == 1 || result == 0);
                EXPECT(isnan(cup__load(y, cup__offset_of(y, e))) == reached);
            }
            cup_context_free(c);
        }
}

/* Bits follow from the call alone. */
TEST(conv_threads_change_no_bit)
{
    cup_tensor *found[2][3];
    cup_context *contexts[2];
    for (int i = 0; i < 2; i++) {
        cup_context *c = contexts[i] = cup_context_new(
            CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1 + i, .seed = 3,
                        .deterministic = true));
        cup_tensor *x = drawn(c, CUP_F32, 3, 33, 20, 21), *w = drawn(c, CUP_F32, 65, 33, 3, 3);
        cup_require_grad(x);
        cup_require_grad(w);
        found[i][0] = cup_conv2d(c, x, w, NULL, CUP_OPTIONS(cup_conv2d_options,
                                                            .stride = CUP_INTS(2)));
        EXPECT_INT(cup_gradients(c, cup_sum(c, found[i][0], NULL, 0, false),
                                 (cup_tensor *[]){x, w}, 2, found[i] + 1), CUP_OK);
    }
    for (int k = 0; k < 3; k++)
        EXPECT(!memcmp(found[0][k]->data, found[1][k]->data,
                       (size_t)found[0][k]->count * sizeof(float)));
    cup_context_free(contexts[0]);
    cup_context_free(contexts[1]);
}

static cup_tensor *penalty(cup_context *c, cup_tensor *x, cup_tensor *w)
{
    cup_tensor *y = cup_conv2d(c, x, w, NULL,
                               CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2, 1),
                                           .padding = CUP_INTS(1), .dilation = CUP_INTS(1, 2),
                                           .groups = 2));
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, cup_mul(c, y, y)), NULL, 0, false), *d[2];
    cup_gradients_recorded(c, loss, (cup_tensor *[]){x, w}, 2, d);
    return cup_add(c, cup_sum(c, cup_mul(c, d[0], d[0]), NULL, 0, false),
                   cup_sum(c, cup_mul(c, d[1], d[1]), NULL, 0, false));
}

TEST(conv_has_second_derivatives)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *all[2] = {drawn(c, CUP_F64, 1, 2, 5, 6), drawn(c, CUP_F64, 4, 1, 2, 3)}, *d[2];
    cup_require_grad(all[0]);
    cup_require_grad(all[1]);
    EXPECT_INT(cup_gradients(c, penalty(c, all[0], all[1]), all, 2, d), CUP_OK);
    for (int i = 0; i < 2; i++)
        for (int64_t e = 0; e < all[i]->count; e += 5) {
            double *at = (double *)all[i]->data + e, was = *at, step = 1e-5, moved[2];
            for (int s = 0; s < 2; s++) {
                *at = was + (s ? -step : step);
                moved[s] = cup__load(penalty(c, all[0], all[1]), 0);
            }
            *at = was;
            double want = (moved[0] - moved[1]) / (2 * step);
            EXPECT_NEAR(((double *)d[i]->data)[e], want, 1e-4 * (1 + fabs(want)));
        }
    cup_context_free(c);
}

#define REFUSED(words, ...)                                                                        \
    do {                                                                                           \
        EXPECT(!cup_conv2d(c, __VA_ARGS__));                                                       \
        EXPECT_CONTAINS(cup_error_text(c), words);                                                 \
        cup_error_clear(c);                                                                        \
    } while (0)
#define WITH(...) CUP_OPTIONS(cup_conv2d_options, __VA_ARGS__)

TEST(conv_says_what_is_wrong)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = drawn(c, CUP_F32, 1, 4, 5, 6), *w = drawn(c, CUP_F32, 6, 4, 3, 3);
    cup_tensor *bias = cup_zeros(c, CUP_F32, 1, (int64_t[]){5});
    int64_t huge = (int64_t)1 << 60;
    REFUSED("the result would have no height", x, drawn(c, CUP_F32, 6, 4, 6, 3), NULL, NULL);
    REFUSED("reaches over 7, the image with its padding has 6", x, w, NULL,
            WITH(.dilation = CUP_INTS(1, 3)));
    REFUSED("divide into 3 groups", x, w, NULL, WITH(.groups = 3));
    REFUSED("2 channels in each of 2 groups", x, w, NULL, WITH(.groups = 2));
    REFUSED("groups must be at least 1", x, w, NULL, WITH(.groups = -1));
    REFUSED("bias must have the shape [6]", x, w, bias, NULL);
    REFUSED("stride 0", x, w, NULL, WITH(.stride = CUP_INTS(1, 0)));
    REFUSED("is not from 0 to 2^29", x, w, NULL, WITH(.padding = CUP_INTS(-1)));
    REFUSED("is not from 0 to 2^29", x, w, NULL, WITH(.padding = CUP_INTS(huge)));
    REFUSED("padding has 3 numbers", x, w, NULL, WITH(.padding = CUP_INTS(1, 1, 1)));
    REFUSED("stride has 4 numbers", x, w, NULL, WITH(.stride = CUP_INTS(1, 1, 1, 1)));
    REFUSED("may have a height of at most 2^29", x, w, NULL, WITH(.dilation = CUP_INTS(1 << 29)));
    REFUSED("padding is given and `same` too", x, w, NULL,
            WITH(.padding = CUP_INTS(1), .same = true));
    REFUSED("conv2d", cup_reshape(c, x, 2, (int64_t[]){4, 30}), w, NULL, NULL);
    REFUSED("conv2d", x, drawn(c, CUP_F64, 6, 4, 3, 3), NULL, NULL);
    cup_context_free(c);
}
