/* Weights of 8 and 4 bits. */
#include <math.h>

#include "base/philox.h"
#include "cupola/cupola.h"
#include "test.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *random_weights(cup_context *c, int64_t n, int64_t k)
{
    return cup_normal(c, CUP_F32, 2, (int64_t[]){n, k}, 0.1, 1);
}

static float most_of_difference(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    float most = -1;
    cup_tensor *d = cup_max(c, cup_abs(c, cup_sub(c, a, b)), NULL, 0, false);
    EXPECT_INT(cup_tensor_read(d, &most, sizeof most), CUP_OK);
    return most;
}

/* Rounding to the nearest number leaves at most half a scale. */
TEST(linear_packed_round_trip)
{
    cup_context *c = cpu();
    cup_tensor *w = random_weights(c, 24, 128), *out[2] = {NULL};
    float scale;
    EXPECT_INT(cup_pack_int8(c, w, 32, &out[0], &out[1]), CUP_OK);
    EXPECT_INT(cup_tensor_read(cup_max(c, out[1], NULL, 0, false), &scale, sizeof scale), CUP_OK);
    cup_tensor *back = cup_unpack_int8(c, out[0], out[1], CUP_F32);
    EXPECT(most_of_difference(c, w, back) <= 0.501f * scale);
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        cup_tensor *four[3] = {NULL};
        EXPECT_INT(cup_pack_int4(c, w, 32, symmetric, &four[0], &four[1], &four[2]), CUP_OK);
        EXPECT_INT(cup_tensor_read(cup_max(c, four[1], NULL, 0, false), &scale, sizeof scale),
                   CUP_OK);
        back = cup_unpack_int4(c, four[0], four[1], symmetric ? NULL : four[2], CUP_F32);
        EXPECT(most_of_difference(c, w, back) <= 1.001f * scale);
        cup_tensor *x = cup_normal(c, CUP_F32, 2, (int64_t[]){3, 128}, 0, 1);
        cup_tensor *y = cup_linear_int4(c, x, four[0], four[1], four[2], NULL);
        EXPECT(most_of_difference(c, y, cup_linear(c, x, back, NULL)) < 1e-3f);
    }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

/* Whole rows of zeros, and elements that are no numbers, have a scale and numbers too. */
TEST(linear_packed_zeros_and_nan)
{
    cup_context *c = cpu();
    float values[8] = {0, 0, 0, 0, NAN, 1, -1, 0.5f}, back[8];
    cup_tensor *w = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 4}, values);
    cup_tensor *q = NULL, *scale = NULL, *zero = NULL;
    EXPECT_INT(cup_pack_int4(c, w, 4, false, &q, &scale, &zero), CUP_OK);
    cup_tensor *floats = cup_unpack_int4(c, q, scale, zero, CUP_F32);
    EXPECT_INT(cup_tensor_read(floats, back, sizeof back), CUP_OK);
    for (int i = 0; i < 5; i++)
        EXPECT(back[i] == 0);
    EXPECT(fabsf(back[5] - 1) < 0.1f && fabsf(back[6] + 1) < 0.1f);
    cup_context_free(c);
}

TEST(linear_packed_says_what_is_wrong)
{
    cup_context *c = cpu();
    cup_tensor *w = random_weights(c, 4, 12), *q = NULL, *scale = NULL;
    EXPECT_INT(cup_pack_int8(c, w, 5, &q, &scale), CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "whole number of groups of 5");
    cup_error_clear(c);
    EXPECT_INT(cup_pack_int8(c, w, 4, &q, &scale), CUP_OK);
    cup_tensor *x = cup_normal(c, CUP_F32, 2, (int64_t[]){2, 8}, 0, 1);
    EXPECT(cup_linear_int8(c, x, q, scale, NULL) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "x has 8 features and weight takes 12");
    cup_error_clear(c);
    EXPECT(cup_linear_int8(c, x, w, scale, NULL) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "make it with pack_int8");
    cup_context_free(c);
}
