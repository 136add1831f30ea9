/* Products of groups of rows: sentences, offsets that do not rise, and nothing that leaks from one
 * group into another. */
#include <math.h>

#include "../test.h"
#include "cupola/ops.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

static cup_tensor *ones(cup_context *c, int ndim, int64_t a, int64_t b, int64_t d)
{
    return cup_full(c, CUP_F32, ndim, (int64_t[]){a, b, d}, 1);
}

TEST(grouped_sentences)
{
    cup_context *c = cpu();
    cup_tensor *x = ones(c, 2, 6, 4, 0), *w = ones(c, 3, 2, 4, 5);
    cup_tensor *offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){3, 6});
    cup_tensor *three = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){3}, (int32_t[]){1, 2, 3});
    EXPECT(!cup_grouped_matmul(c, x, w, offsets, true));
    expect_error(c, "x has 4 features and the matrices of weight take 5");
    EXPECT(!cup_grouped_matmul(c, x, w, three, false));
    expect_error(c, "there are 3 offsets for 2 matrices");
    EXPECT(!cup_grouped_matmul(c, x, w, x, false));
    expect_error(c, "input 3 must be i32 or i64");
    EXPECT(!cup_grouped_matmul(c, x, x, offsets, false));
    expect_error(c, "input 2 must have 3 dimensions");
    cup_context_free(c);
}

/* Each group has its own number, so that every element says which matrix made it. */
TEST(grouped_offsets)
{
    static const int32_t cases[4][3] = {{2, 2, 5}, {4, 4, 6}, {0, 0, 0}, {6, 6, 6}};
    static const int owner[4][6] = {
        {0, 0, 2, 2, 2, -1}, {0, 0, 0, 0, 2, 2}, {-1, -1, -1, -1, -1, -1}, {0, 0, 0, 0, 0, 0}};
    static const int32_t bad[4][3] = {{4, 1, 6}, {-3, 0, 0}, {7, 7, 7}, {2, 5, 4}};
    cup_context *c = cpu();
    float weights[3 * 4 * 5];
    for (int i = 0; i < 3 * 4 * 5; i++)
        weights[i] = (float)(i / 20 + 1);
    cup_tensor *x = ones(c, 2, 6, 4, 0);
    cup_tensor *w = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){3, 4, 5}, weights);
    for (int i = 0; i < 4; i++) {
        cup_tensor *offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){3}, cases[i]);
        const float *y = cup_tensor_data(cup_grouped_matmul(c, x, w, offsets, false));
        for (int row = 0; row < 6; row++)
            for (int k = 0; k < 5; k++)
                EXPECT(y[row * 5 + k] == (float)(4 * (owner[i][row] + 1)));
    }
    for (int i = 0; i < 4; i++) {
        cup_tensor *offsets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){3}, bad[i]);
        EXPECT(!cup_grouped_matmul(c, x, w, offsets, false));
        expect_error(c, "must end between");
    }
    cup_context_free(c);
}

TEST(grouped_infinities_stay)
{
    cup_context *c = cpu();
    float rows[6 * 4];
    for (int i = 0; i < 6 * 4; i++)
        rows[i] = i / 4 == 3 ? INFINITY : i / 4 == 5 ? NAN : 1;
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){6, 4}, rows);
    cup_tensor *offsets = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){2}, (int64_t[]){3, 5});
    const float *y = cup_tensor_data(cup_grouped_matmul(c, x, ones(c, 3, 2, 4, 5), offsets, false));
    for (int i = 0; i < 6 * 5; i++)
        EXPECT(i / 5 == 3 ? isinf(y[i]) : i / 5 == 5 ? y[i] == 0 : y[i] == 4);
    cup_context_free(c);
}
