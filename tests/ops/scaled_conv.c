/* conv2d of codes of 8 bits: exact sums where f32 would not have them, against the product that a
 * kernel of 1 x 1 is, images in both orders, and sentences for what does not fit. */
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "dispatch/op.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *drawn(cup_context *c, cup_dtype dtype, int64_t n, int64_t ch, int64_t h,
                         int64_t w)
{
    double most = dtype == CUP_I8 ? 120 : 3;
    return cup_cast(c, cup_uniform(c, CUP_F32, 4, (int64_t[]){n, ch, h, w}, -most, most), dtype);
}

static cup_tensor *numbers(cup_context *c, int64_t count)
{
    return cup_uniform(c, CUP_F32, 1, &count, 0.5, 2);
}

/* Sums of `channels` x 9 products of 127 x 127, but for one of 126 in each result's row: beyond
 * 2^24, where only exact sums give the nearest f32. Channels last if `last`. */
static void check_exact(cup_context *c, int64_t channels, int64_t groups, bool last)
{
    enum { RESULTS = 32, TAPS = 9 };
    int64_t each = channels / groups, depth = each * TAPS;
    static int8_t x[2 * 576 * TAPS], w[RESULTS * 576 * TAPS];
    static float sums[RESULTS];
    memset(x, 127, sizeof x);
    memset(w, 127, sizeof w);
    for (int64_t i = 0; i < RESULTS; i++)
        w[i * depth + i * 7 % depth] = 126;
    cup_tensor *image = cup_tensor_from(c, CUP_I8, 4, (int64_t[]){1, channels, 3, 3}, x);
    if (last)
        image = cup_permute(c, cup_tensor_from(c, CUP_I8, 4, (int64_t[]){1, 3, 3, channels}, x),
                            (int64_t[]){0, 3, 1, 2}, 4);
    cup_tensor *weight = cup_tensor_from(c, CUP_I8, 4, (int64_t[]){RESULTS, each, 3, 3}, w);
    cup_tensor *y = cup_scaled_conv2d(
        c, image, weight, NULL, NULL, NULL, CUP_F32,
        CUP_OPTIONS(cup_scaled_conv2d_options, .groups = (int)groups));
    EXPECT(y && y->count == RESULTS);
    EXPECT_INT(cup_tensor_read(cup_copy(c, y), sums, sizeof sums), CUP_OK);
    for (int i = 0; i < RESULTS; i++)
        EXPECT(sums[i] == (float)(127 * 127 * depth - 127));
}

static void check_all_exact(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c))
        test_skip("%s", cup_error_text(c));
    check_exact(c, 512, 1, true);
    check_exact(c, 301, 1, true);
    check_exact(c, 301, 1, false);
    check_exact(c, 576, 2, true);
    check_exact(c, 576, 4, false);
    cup_context_free(c);
}

TEST(scaled_conv2d_exact)
{
    check_all_exact("cpu");
}

TEST(gpu_scaled_conv2d_exact)
{
    check_all_exact("cuda");
}

/* With a kernel of 1 x 1 it is scaled_matmul, whose code is another. */
TEST(scaled_conv2d_of_points)
{
    cup_context *c = cpu();
    cup_seed(c, 3);
    for (int i = 0; i < 2; i++) {
        cup_dtype dtype = i ? CUP_I8 : CUP_F8E4M3;
        cup_tensor *rows = drawn(c, dtype, 2, 5, 7, 35);
        cup_tensor *x = cup_permute(c, rows, (int64_t[]){0, 3, 1, 2}, 4);
        cup_tensor *w = drawn(c, dtype, 6, 35, 1, 1), *scale = numbers(c, 1), *each = numbers(c, 6);
        cup_tensor *bias = numbers(c, 6);
        cup_tensor *y = cup_scaled_conv2d(c, x, w, scale, each, bias, CUP_F32, NULL);
        cup_tensor *want = cup_scaled_matmul(c, rows, cup_reshape(c, w, 2, (int64_t[]){6, 35}),
                                             scale, cup_reshape(c, each, 2, (int64_t[]){6, 1}),
                                             bias, CUP_F32, false);
        EXPECT(y && want && cup_tensor_stride(y, 1) == 1);
        cup_tensor *got = cup_copy(c, cup_permute(c, y, (int64_t[]){0, 2, 3, 1}, 4));
        for (int64_t k = 0; k < want->count; k++)
            EXPECT_NEAR((double)((float *)got->data)[k], (double)((float *)want->data)[k],
                        i ? 0.05 : 1e-4);
    }
    cup_context_free(c);
}

/* Against conv2d of the numbers that codes stand for. */
TEST(scaled_conv2d_options)
{
    cup_context *c = cpu();
    cup_seed(c, 4);
    for (int i = 0; i < 2; i++) {
        cup_dtype dtype = i ? CUP_I8 : CUP_F8E4M3;
        cup_tensor *x = drawn(c, dtype, 2, 6, 9, 8), *w = drawn(c, dtype, 4, 3, 3, 2);
        cup_tensor *each = numbers(c, 4), *bias = numbers(c, 4);
        cup_tensor *y = cup_scaled_conv2d(
            c, x, w, NULL, each, bias, CUP_F32,
            CUP_OPTIONS(cup_scaled_conv2d_options, .stride = CUP_INTS(2, 1), .groups = 2,
                        .padding = CUP_INTS(1, 0, 2, 1), .dilation = CUP_INTS(1, 2)));
        cup_tensor *wide = cup_mul(c, cup_cast(c, w, CUP_F64),
                                   cup_cast(c, cup_reshape(c, each, 4, (int64_t[]){4, 1, 1, 1}),
                                            CUP_F64));
        cup_tensor *want = cup_conv2d(
            c, cup_cast(c, x, CUP_F64), wide, cup_cast(c, bias, CUP_F64),
            CUP_OPTIONS(cup_conv2d_options, .stride = CUP_INTS(2, 1), .groups = 2,
                        .padding = CUP_INTS(1, 0, 2, 1), .dilation = CUP_INTS(1, 2)));
        EXPECT(y && want && y->count == want->count);
        for (int64_t k = 0; k < want->count; k++)
            EXPECT_NEAR((double)((float *)y->data)[k], ((double *)want->data)[k], i ? 0.1 : 1e-4);
    }
    cup_context_free(c);
}

#define REFUSED(words, ...)                                                                        \
    do {                                                                                           \
        EXPECT(!cup_scaled_conv2d(c, __VA_ARGS__));                                                \
        EXPECT_CONTAINS(cup_error_text(c), words);                                                 \
        cup_error_clear(c);                                                                        \
    } while (0)

TEST(scaled_conv2d_sentences)
{
    cup_context *c = cpu();
    cup_tensor *x = drawn(c, CUP_I8, 1, 4, 5, 6), *w = drawn(c, CUP_I8, 6, 4, 3, 3);
    cup_tensor *other = drawn(c, CUP_F8E4M3, 6, 4, 3, 3), *wide = drawn(c, CUP_F32, 6, 4, 3, 3);
    cup_tensor *five = numbers(c, 5), *six = numbers(c, 6);
    REFUSED("must both be f8e4m3, or both i8", x, other, NULL, NULL, NULL, CUP_F32, NULL);
    REFUSED("make them with cup_quantize", wide, wide, NULL, NULL, NULL, CUP_F32, NULL);
    REFUSED("must be bf16, f16 or f32, not i32", x, w, NULL, NULL, NULL, CUP_I32, NULL);
    REFUSED("x_scale must have one element", x, w, five, NULL, NULL, CUP_F32, NULL);
    REFUSED("weight_scale must be one, [6] or [6,1]", x, w, NULL, five, NULL, CUP_F32, NULL);
    REFUSED("weight_scale must be one, [6] or [6,1]", x, w, NULL,
            cup_reshape(c, six, 2, (int64_t[]){1, 6}), NULL, CUP_F32, NULL);
    REFUSED("bias must have the shape [6]", x, w, NULL, six, five, CUP_F32, NULL);
    REFUSED("bias must be f32, not bf16", x, w, NULL, six, cup_cast(c, six, CUP_BF16), CUP_BF16,
            NULL);
    REFUSED("weight_scale must be f32, not f16", x, w, NULL, cup_cast(c, six, CUP_F16), NULL,
            CUP_F32, NULL);
    REFUSED("the result would have no height", x, drawn(c, CUP_I8, 6, 4, 6, 3), NULL, NULL, NULL,
            CUP_F32, NULL);
    cup_context_free(c);
}
