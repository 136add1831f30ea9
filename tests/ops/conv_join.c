/* Convolutions with options that are no attributes of the op: padding that is made of the image,
 * and what stands behind the sums. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

static cup_tensor *drawn(cup_context *c, int ndim, const int64_t *shape)
{
    return cup_uniform(c, CUP_F64, ndim, shape, -1, 1);
}

static void expect_same(cup_tensor *a, cup_tensor *b)
{
    EXPECT(a && b && a->count == b->count && a->count > 0);
    for (int64_t i = 0; a && b && i < a->count; i++)
        EXPECT_NEAR(cup__load(a, cup__offset_of(a, i)), cup__load(b, cup__offset_of(b, i)), 1e-12);
}

/* The same image, with its channels as neighbours in memory. */
static cup_tensor *channels_last(cup_context *c, cup_tensor *x)
{
    cup_tensor *turned = cup_copy(c, cup_permute(c, x, (int64_t[]){0, 2, 3, 1}, 4));
    return cup_permute(c, turned, (int64_t[]){0, 3, 1, 2}, 4);
}

static cup_tensor *padded(cup_context *c, cup_tensor *x, cup_padding_mode mode,
                          const int64_t *before, const int64_t *after)
{
    int n = x->ndim;
    return mode == CUP_PADDING_MODE_REFLECT     ? cup_pad_reflect(c, x, before, n, after, n)
           : mode == CUP_PADDING_MODE_REPLICATE ? cup_pad_replicate(c, x, before, n, after, n)
                                                : cup_pad_circular(c, x, before, n, after, n);
}

/* And the gradients of both. */
static void expect_alike(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *const *leaves,
                         int count)
{
    cup_tensor *of[2][4], *both[] = {a, b};
    expect_same(a, b);
    cup_tape_keep(c, true);
    for (int i = 0; i < 2; i++)
        EXPECT_INT(cup_gradients(c, cup_sum(c, cup_mul(c, both[i], both[i]), NULL, 0, false),
                                 leaves, count, of[i]), CUP_OK);
    for (int i = 0; i < count; i++)
        expect_same(of[0][i], of[1][i]);
}

TEST(conv_padding_modes)
{
    for (int mode = CUP_PADDING_MODE_REFLECT; mode <= CUP_PADDING_MODE_CIRCULAR; mode++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup_padding_mode own = (cup_padding_mode)mode;
        cup_tensor *x = drawn(c, 4, (int64_t[]){2, 3, 6, 7});
        cup_tensor *w = drawn(c, 4, (int64_t[]){4, 3, 3, 2});
        cup_tensor *cube = drawn(c, 5, (int64_t[]){1, 2, 4, 5, 3});
        cup_tensor *wide = drawn(c, 5, (int64_t[]){3, 2, 3, 2, 1});
        cup_tensor *line = drawn(c, 3, (int64_t[]){2, 3, 9});
        cup_tensor *k = drawn(c, 3, (int64_t[]){2, 3, 3});
        cup_tensor *const leaves[] = {x, w, cube, wide, line, k};
        for (int i = 0; i < 6; i++)
            cup_require_grad(leaves[i]);
        cup_tensor *y = cup_conv2d(c, x, w, NULL,
                                   CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(1, 2, 3, 0),
                                               .stride = CUP_INTS(2), .padding_mode = own));
        cup_tensor *other = cup_conv2d(
            c, padded(c, x, own, (int64_t[]){0, 0, 1, 3}, (int64_t[]){0, 0, 2, 0}), w, NULL,
            CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2)));
        expect_alike(c, y, other, leaves, 2);
        y = cup_conv2d(c, channels_last(c, x), w, NULL,
                       CUP_OPTIONS(cup_conv2d_options, .same = true, .padding_mode = own));
        EXPECT(y && y->stride[1] == 1);
        other = cup_conv2d(c, padded(c, x, own, (int64_t[]){0, 0, 1, 0}, (int64_t[]){0, 0, 1, 1}),
                           w, NULL, NULL);
        expect_alike(c, y, other, leaves, 2);
        y = cup_conv3d(c, cube, wide, NULL,
                       CUP_OPTIONS(cup_conv3d_options, .padding = CUP_INTS(2, 1, 0),
                                   .padding_mode = own));
        other = cup_conv3d(
            c, padded(c, cube, own, (int64_t[]){0, 0, 2, 1, 0}, (int64_t[]){0, 0, 2, 1, 0}), wide,
            NULL, NULL);
        expect_alike(c, y, other, leaves + 2, 2);
        y = cup_conv1d(c, line, k, NULL,
                       CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(2, 1),
                                   .padding_mode = own));
        other = cup_conv1d(c, padded(c, line, own, (int64_t[]){0, 0, 2}, (int64_t[]){0, 0, 1}), k,
                           NULL, NULL);
        expect_alike(c, y, other, leaves + 4, 2);
        EXPECT_INT(cup_error(c), CUP_OK);
        cup_context_free(c);
    }
}

static cup_tensor *activated(cup_context *c, cup_activation activation, cup_tensor *y)
{
    switch (activation) {
    case CUP_ACTIVATION_RELU:
        return cup_relu(c, y);
    case CUP_ACTIVATION_GELU:
        return cup_gelu(c, y);
    case CUP_ACTIVATION_SILU:
        return cup_silu(c, y);
    case CUP_ACTIVATION_TANH:
        return cup_tanh(c, y);
    case CUP_ACTIVATION_SIGMOID:
        return cup_sigmoid(c, y);
    default:
        return y;
    }
}

/* In one pass, which nothing records, and with gradients. */
TEST(conv_joins_what_stands_behind_it)
{
    for (int kind = CUP_ACTIVATION_NONE; kind <= CUP_ACTIVATION_SIGMOID; kind++) {
        cup_activation own = (cup_activation)kind;
        if (own == CUP_ACTIVATION_SWIGLU)
            continue;
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup_tensor *x = drawn(c, 4, (int64_t[]){2, 3, 6, 7});
        cup_tensor *w = drawn(c, 4, (int64_t[]){4, 3, 3, 3});
        cup_tensor *b = drawn(c, 1, (int64_t[]){4}), *r = drawn(c, 4, (int64_t[]){2, 4, 6, 7});
        cup_tensor *const leaves[] = {x, w, b, r};
        const cup_conv2d_options plain = {.size = sizeof plain, .padding = CUP_INTS(1)};
        cup_conv2d_options joined = plain;
        joined.residual = r;
        joined.activation = own;
        for (int recorded = 0; recorded < 2; recorded++) {
            cup_tensor *sum = cup_add(c, cup_conv2d(c, x, w, b, &plain), r);
            cup_tensor *y = cup_conv2d(c, x, w, b, &joined);
            if (recorded)
                expect_alike(c, y, activated(c, own, sum), leaves, 4);
            else
                expect_same(y, activated(c, own, sum));
            joined.residual = channels_last(c, r);
            y = cup_conv2d(c, channels_last(c, x), w, b, &joined);
            joined.residual = r;
            EXPECT(y && y->stride[1] == 1);
            expect_same(y, activated(c, own, sum));
            for (int i = 0; i < 4; i++)
                cup_require_grad(leaves[i]);
        }
        EXPECT_INT(cup_error(c), CUP_OK);
        cup_context_free(c);
    }
}

static void expect_refused(cup_context *c, cup_tensor *y, const char *words)
{
    EXPECT(!y);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(conv_options_that_cannot_be)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = drawn(c, 4, (int64_t[]){1, 2, 4, 4}), *w = drawn(c, 4, (int64_t[]){2, 2, 3, 3});
    cup_conv2d_options o = {.size = sizeof o, .activation = CUP_ACTIVATION_SWIGLU};
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "activation");
    o = (cup_conv2d_options){.size = sizeof o, .residual = x};
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "residual must have");
    o.activation = CUP_ACTIVATION_TANH;
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "residual must have");
    o = (cup_conv2d_options){.size = sizeof o, .padding_mode = (cup_padding_mode)9};
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "padding mode");
    o = (cup_conv2d_options){.size = sizeof o, .padding = CUP_INTS(4),
                             .padding_mode = CUP_PADDING_MODE_REFLECT};
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "pad");
    o.padding = CUP_INTS(1, 2, 3);
    expect_refused(c, cup_conv2d(c, x, w, NULL, &o), "padding has 3 numbers");
    expect_refused(c, cup_conv2d(c, NULL, w, NULL, &o), "conv2d");
    EXPECT(!cup_conv2d(NULL, x, w, NULL, &o) && !cup_conv2d(NULL, x, w, NULL, NULL));
    EXPECT(!cup_conv3d(NULL, x, w, NULL, NULL));
    cup_context_free(c);
}
