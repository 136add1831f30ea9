/* Codes of 8 bits: sentences for what does not fit, special values, products of unlike dtypes and
 * exact sums. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "base/float8.h"
#include "cupola/ops.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *tensor(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns)
{
    return cup_full(c, dtype, 2, (int64_t[]){rows, columns}, 1);
}

static cup_tensor *by_three(cup_context *c)
{
    return cup_full(c, CUP_F32, 1, (int64_t[]){3}, 1);
}

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

TEST(scaled_sentences)
{
    cup_context *c = cpu();
    cup_tensor *x = tensor(c, CUP_F32, 4, 256), *y = NULL, *scale = NULL;
    EXPECT(cup_quantize(c, x, CUP_F8E4M3,
                        CUP_OPTIONS(cup_quantize_options, .block_rows = 1, .block_columns = 64), &y,
                        &scale) != CUP_OK);
    expect_error(c, "blocks of 1 rows and 64 columns; they must be 0 and 0, 1 and 0, 1 and 128");
    EXPECT(cup_quantize(c, x, CUP_BF16, NULL, &y, &scale) != CUP_OK);
    expect_error(c, "codes are f8e4m3, f8e5m2 or i8, not bf16");
    cup_tensor *a = cup_cast(c, x, CUP_F8E4M3), *i = cup_cast(c, x, CUP_I8);
    EXPECT(!cup_scaled_matmul(c, x, a, NULL, NULL, NULL, CUP_BF16, true));
    expect_error(c, "a and b must be f8e4m3, f8e5m2 or i8; make them with cup_quantize");
    EXPECT(!cup_scaled_matmul(c, a, i, NULL, NULL, NULL, CUP_BF16, true));
    expect_error(c, "i8 is multiplied with i8 only");
    EXPECT(!cup_scaled_matmul(c, a, a, NULL, NULL, NULL, CUP_I32, true));
    expect_error(c, "i32 is for products of i8 without scales and bias");
    EXPECT(!cup_scaled_matmul(c, a, a, NULL, NULL, NULL, CUP_F64, true));
    expect_error(c, "the result must be bf16, f16, f32 or i32, not f64");
    EXPECT(!cup_scaled_matmul(c, a, a, tensor(c, CUP_F32, 3, 1), NULL, NULL, CUP_F32, true));
    expect_error(c, "the scales, input 3, must be [1, 1 or 4, 1 or 2] for 4 rows of 256");
    EXPECT(!cup_scaled_matmul(c, a, a, NULL, NULL, x, CUP_F32, true));
    expect_error(c, "bias must have the shape [4]");
    EXPECT(!cup_scaled_matmul(c, a, cup_cast(c, tensor(c, CUP_F32, 2, 3), CUP_F8E5M2), NULL, NULL,
                              NULL, CUP_F32, true));
    expect_error(c, "a has rows of 256 and b [N,K] has rows of 3");
    cup_context_free(c);
}

/* The largest element becomes the largest code; zeros, NaN and infinities have a defined end. */
TEST(quantize_special_values)
{
    static const float rows[4][4] = {
        {0, -0.0f, 0, 0}, {NAN, 2, -4, 1}, {INFINITY, 1, 0, -1}, {1e-45f, 0, 0, 0}};
    cup_context *c = cpu();
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){4, 4}, rows), *y = NULL,
               *scale = NULL;
    EXPECT(cup_quantize(c, x, CUP_F8E4M3, CUP_OPTIONS(cup_quantize_options, .block_rows = 1), &y,
                        &scale) == CUP_OK);
    const uint8_t *codes = cup_tensor_data(y);
    const float *scales = cup_tensor_data(scale);
    EXPECT(scales[0] == 1 && codes[0] == 0 && codes[1] == 0x80);
    EXPECT(scales[1] == 4.0f / 448 && isnan(cup__from_f8e4m3(codes[4])));
    EXPECT(cup__from_f8e4m3(codes[5]) == 224 && cup__from_f8e4m3(codes[6]) == -448);
    EXPECT(isinf(scales[2]) && isnan(cup__from_f8e4m3(codes[8])) && codes[9] == 0);
    EXPECT(scales[3] == 0x1p-126f && codes[12] == 0);
    y = scale = NULL;
    EXPECT(cup_quantize(c, x, CUP_I8, CUP_OPTIONS(cup_quantize_options, .block_rows = 1), &y,
                        &scale) == CUP_OK);
    const int8_t *whole = cup_tensor_data(y);
    EXPECT(whole[4] == 0 && whole[6] == -127 && whole[5] == 64 && whole[7] == 32);
    cup_context_free(c);
}

/* What a quantised matrix stands for is what it was, to half a code. */
TEST(quantize_and_back)
{
    cup_context *c = cpu();
    static const int blocks[4][2] = {{0, 0}, {1, 0}, {1, 128}, {128, 128}};
    float values[33 * 200];
    for (int i = 0; i < 33 * 200; i++)
        values[i] = (float)test_uniform(-3, 3);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){33, 200}, values);
    for (int i = 0; i < 4; i++) {
        cup_tensor *y = NULL, *scale = NULL;
        EXPECT(cup_quantize(c, x, CUP_I8,
                            CUP_OPTIONS(cup_quantize_options, .block_rows = blocks[i][0],
                                        .block_columns = blocks[i][1]),
                            &y, &scale) == CUP_OK);
        const float *back = cup_tensor_data(cup_dequantize(c, y, scale, CUP_F32));
        for (int k = 0; k < 33 * 200; k++)
            EXPECT_NEAR((double)back[k], (double)values[k], 3.0 / 127 * 0.501);
    }
    cup_context_free(c);
}

TEST(scaled_matmul_unlike_dtypes)
{
    cup_context *c = cpu();
    float a[3 * 40], b[5 * 40];
    for (int i = 0; i < 3 * 40; i++)
        a[i] = (float)test_uniform(-2, 2);
    for (int i = 0; i < 5 * 40; i++)
        b[i] = (float)test_uniform(-2, 2);
    cup_tensor *ta = cup_cast(c, cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 40}, a), CUP_F8E4M3);
    cup_tensor *tb = cup_cast(c, cup_tensor_from(c, CUP_F32, 2, (int64_t[]){5, 40}, b), CUP_F8E5M2);
    cup_tensor *y = cup_scaled_matmul(c, ta, tb, NULL, NULL, NULL, CUP_F32, true);
    cup_tensor *want = cup_linear(c, cup_cast(c, ta, CUP_F32), cup_cast(c, tb, CUP_F32), NULL);
    EXPECT(y && want);
    for (int i = 0; i < 15; i++)
        EXPECT_NEAR((double)((float *)cup_tensor_data(y))[i],
                    (double)((float *)cup_tensor_data(want))[i], 1e-4);
    cup_context_free(c);
}

/* Sums of integers are exact where f32 would not be. */
TEST(scaled_matmul_exact)
{
    cup_context *c = cpu();
    enum { K = 3001 };
    int8_t a[K], b[2 * K];
    memset(a, 127, sizeof a);
    memset(b, 127, sizeof b);
    b[K] = 126;
    cup_tensor *y = cup_scaled_matmul(c, cup_tensor_from(c, CUP_I8, 2, (int64_t[]){1, K}, a),
                                      cup_tensor_from(c, CUP_I8, 2, (int64_t[]){2, K}, b), NULL,
                                      NULL, NULL, CUP_I32, false);
    EXPECT(y);
    const int32_t *sums = cup_tensor_data(y);
    EXPECT_INT(sums[0], 127 * 127 * K);
    EXPECT_INT(sums[1], 127 * 127 * K - 127);
    cup_context_free(c);
}

/* Each group has a matrix and scales of its own; rows of no group are zero. */
TEST(scaled_groups)
{
    cup_context *c = cpu();
    enum { K = 130, N = 3, GROUPS = 2, ROWS = 5 };
    static const float by_matrix[] = {2, 4}, by_block[] = {2, 3, 4, 5};
    cup_tensor *x = cup_cast(c, tensor(c, CUP_F32, ROWS, K), CUP_I8), *y = NULL;
    cup_tensor *ones = cup_full(c, CUP_F32, 3, (int64_t[]){GROUPS, N, K}, 1);
    cup_tensor *w = cup_cast(c, ones, CUP_I8);
    cup_tensor *offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){3, 4});
    cup_tensor *scale = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, by_matrix);
    cup_tensor *blocks = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){2, 1, 2}, by_block);
    y = cup_scaled_grouped_matmul(c, x, w, offsets, NULL, scale, CUP_F32, true);
    EXPECT(y);
    for (int i = 0; i < ROWS * N; i++)
        EXPECT(((float *)cup_tensor_data(y))[i] == (i < 3 * N ? 260 : i < 4 * N ? 520 : 0));
    y = cup_scaled_grouped_matmul(c, x, w, offsets, NULL, blocks, CUP_F32, true);
    EXPECT(y);
    for (int i = 0; i < ROWS * N; i++)
        EXPECT(((float *)cup_tensor_data(y))[i] == (i < 3 * N   ? 128 * 2 + 2 * 3
                                                    : i < 4 * N ? 128 * 4 + 2 * 5
                                                                : 0));
    EXPECT(!cup_scaled_grouped_matmul(c, x, w, offsets, NULL, by_three(c), CUP_F32, true));
    expect_error(c, "the scales, input 5, must be one, [2] or [2,..,..]");
    EXPECT(!cup_scaled_grouped_matmul(c, x, x, offsets, NULL, NULL, CUP_F32, true));
    expect_error(c, "input 2 must have 3 dimensions");
    cup_context_free(c);
}

/* What lies beyond the ends becomes the ends, and what is noted is what was there before. */
TEST(linear_quantize_ends)
{
    cup_context *c = cpu();
    static const float numbers[] = {1, -1000, 3, 0, NAN};
    cup_tensor *w = cup_full(c, CUP_F32, 2, (int64_t[]){1, 1}, 1);
    cup_tensor *half = cup_full(c, CUP_F32, 1, (int64_t[]){1}, 0.5), *y = NULL, *most = NULL;
    for (int count = 4; count <= 5; count++) {
        cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){count, 1}, numbers);
        y = most = NULL;
        EXPECT(cup_linear_quantize(c, x, w, half, NULL, CUP_F8E4M3, false, &y, &most) == CUP_OK);
        const uint8_t *codes = cup_tensor_data(y);
        EXPECT(cup__from_f8e4m3(codes[0]) == 2 && cup__from_f8e4m3(codes[1]) == -448);
        EXPECT(cup__from_f8e4m3(codes[2]) == 6 && codes[3] == 0);
        float noted = *(const float *)cup_tensor_data(most);
        EXPECT(count == 4 ? noted == 1000 : isnan(noted));
    }
    EXPECT(cup_linear_quantize(c, w, w, half, NULL, CUP_I8, false, &y, &most) != CUP_OK);
    expect_error(c, "codes are f8e4m3 or f8e5m2 here, not i8");
    EXPECT(cup_linear_quantize(c, w, w, by_three(c), NULL, CUP_F8E4M3, false, &y, &most) != CUP_OK);
    expect_error(c, "scale must be one f32");
    cup_context_free(c);
}
