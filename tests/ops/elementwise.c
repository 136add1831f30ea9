/* Elementwise ops at values that random samples do not have. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static cup_tensor *floats(cup_context *c, const float *values, int64_t count)
{
    return cup_tensor_from(c, CUP_F32, 1, &count, values);
}

static void read_all(cup_tensor *t, float *to, int64_t count)
{
    EXPECT(t != NULL);
    EXPECT_INT(cup_tensor_read(t, to, (size_t)count * sizeof *to), CUP_OK);
}

TEST(elementwise_special_values)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, 0.0f, 100.0f, -100.0f};
    static const struct {
        cup_tensor *(*op)(cup_context *, cup_tensor *);
        float want[6];
    } cases[] = {
        {cup_exp, {NAN, INFINITY, 0, 1, INFINITY, 3.7835e-44f}},
        {cup_log, {NAN, INFINITY, NAN, -INFINITY, 4.605170f, NAN}},
        {cup_tanh, {NAN, 1, -1, 0, 1, -1}},
        {cup_sigmoid, {NAN, 1, 0, 0.5f, 1, 3.7835e-44f}},
        {cup_relu, {NAN, INFINITY, 0, 0, 100, 0}},
        {cup_silu, {NAN, INFINITY, 0, 0, 100, -3.7835e-42f}},
        {cup_erf, {NAN, 1, -1, 0, 1, -1}},
        {cup_softplus, {NAN, INFINITY, 0, 0.6931472f, 100, 3.7835e-44f}},
        {cup_sqrt, {NAN, INFINITY, NAN, 0, 10, NAN}},
        {cup_sin, {NAN, NAN, NAN, 0, -0.50636564f, 0.50636564f}},
        {cup_cos, {NAN, NAN, NAN, 1, 0.86231887f, 0.86231887f}},
        {cup_mish, {NAN, INFINITY, NAN, 0, 100, -3.7835e-42f}},
    };
    cup_context *c = cpu();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float y[6];
        read_all(cases[i].op(c, floats(c, x, 6)), y, 6);
        for (int k = 0; k < 6; k++) {
            float want = cases[i].want[k];
            bool same = isnan(want) ? isnan(y[k]) : isinf(want) ? y[k] == want
                        : fabsf(y[k] - want) <= 1e-6f * fabsf(want) + 1e-38f;
            if (!same)
                test_fail(__FILE__, __LINE__, "case %d: f(%g) is %g, expected %g", (int)i,
                          (double)x[k], (double)y[k], (double)want);
        }
    }
    cup_context_free(c);
}

/* Where functions end, jump or could lose digits; NAN, infinities and -0 first. */
TEST(elementwise_more_special_values)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, -0.0f, 2.5f, -1.5f, 1e-10f, 1e30f};
    static const struct {
        cup_tensor *(*op)(cup_context *, cup_tensor *);
        float want[8];
    } cases[] = {
        {cup_round, {NAN, INFINITY, -INFINITY, -0.0f, 2, -2, 0, 1e30f}},
        {cup_floor, {NAN, INFINITY, -INFINITY, -0.0f, 2, -2, 0, 1e30f}},
        {cup_ceil, {NAN, INFINITY, -INFINITY, -0.0f, 3, -1, 1, 1e30f}},
        {cup_trunc, {NAN, INFINITY, -INFINITY, -0.0f, 2, -1, 0, 1e30f}},
        {cup_sign, {NAN, 1, -1, -0.0f, 1, -1, 1, 1}},
        {cup_square, {NAN, INFINITY, INFINITY, 0, 6.25f, 2.25f, 1e-20f, INFINITY}},
        {cup_reciprocal, {NAN, 0, -0.0f, -INFINITY, 0.4f, -2 / 3.0f, 1e10f, 1e-30f}},
        {cup_rsqrt, {NAN, 0, NAN, -INFINITY, 0.6324555f, NAN, 1e5f, 1e-15f}},
        {cup_exp2, {NAN, INFINITY, 0, 1, 5.656854f, 0.3535534f, 1, INFINITY}},
        {cup_log2, {NAN, INFINITY, NAN, -INFINITY, 1.321928f, NAN, -33.21928f, 99.65784f}},
        {cup_expm1, {NAN, INFINITY, -1, -0.0f, 11.182494f, -0.7768698f, 1e-10f, INFINITY}},
        {cup_log1p, {NAN, INFINITY, NAN, -0.0f, 1.252763f, NAN, 1e-10f, 69.07755f}},
        {cup_atan, {NAN, 1.570796f, -1.570796f, -0.0f, 1.19029f, -0.9827937f, 1e-10f, 1.570796f}},
        {cup_asinh, {NAN, INFINITY, -INFINITY, -0.0f, 1.647231f, -1.194763f, 1e-10f, 69.7707f}},
        {cup_isnan, {1, 0, 0, 0, 0, 0, 0, 0}},
        {cup_isinf, {0, 1, 1, 0, 0, 0, 0, 0}},
        {cup_isfinite, {0, 0, 0, 1, 1, 1, 1, 1}},
        {cup_logical_not, {0, 0, 0, 1, 0, 0, 0, 0}},
    };
    cup_context *c = cpu();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float y[8];
        read_all(cup_cast(c, cases[i].op(c, floats(c, x, 8)), CUP_F32), y, 8);
        for (int k = 0; k < 8; k++) {
            float want = cases[i].want[k];
            bool same = isnan(want)   ? isnan(y[k])
                        : isinf(want) ? y[k] == want
                                      : fabsf(y[k] - want) <= 1e-6f * fabsf(want) &&
                                            (want != 0 || signbit(want) == signbit(y[k]));
            if (!same)
                test_fail(__FILE__, __LINE__, "case %d: f(%g) is %g, expected %g", (int)i,
                          (double)x[k], (double)y[k], (double)want);
        }
    }
    cup_context_free(c);
}

/* Python's divmod, and C's fmod. */
TEST(whole_quotients_and_what_they_leave)
{
    static const float a[] = {7, -7, 7, -7, 1, -1, 5, 0, INFINITY, -0.5f};
    static const float b[] = {3, 3, -3, -3, INFINITY, INFINITY, 0, 0, 2, 0.1f};
    static const float rest[] = {1, 2, -2, -1, 1, INFINITY, NAN, NAN, NAN, 7.45058e-9f};
    static const float cut[] = {1, -1, 1, -1, 1, -1, NAN, NAN, NAN, -0.1f};
    static const float quotient[] = {2, -3, -3, 2, 0, -1, INFINITY, NAN, NAN, -5};
    static const int64_t whole_a[] = {7, -7, 7, -7, INT64_MIN, 5, INT64_MIN};
    static const int64_t whole_b[] = {3, 3, -3, -3, -1, 0, 10};
    static const int64_t want[3][7] = {{1, 2, -2, -1, 0, 0, 2},
                                       {1, -1, 1, -1, 0, 0, -8},
                                       {2, -3, -3, 2, INT64_MIN, 0, INT64_MIN / 10 - 1}};
    cup_tensor *(*const ops[])(cup_context *, cup_tensor *, cup_tensor *) = {
        cup_remainder, cup_fmod, cup_floor_div};
    const float *wants[] = {rest, cut, quotient};
    cup_context *c = cpu();
    cup_tensor *i = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){7}, whole_a);
    cup_tensor *j = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){7}, whole_b);
    for (int op = 0; op < 3; op++) {
        float y[10];
        read_all(ops[op](c, floats(c, a, 10), floats(c, b, 10)), y, 10);
        for (int k = 0; k < 9; k++)
            EXPECT(isnan(wants[op][k]) ? isnan(y[k]) : y[k] == wants[op][k]);
        EXPECT_NEAR((double)y[9], (double)wants[op][9], 1e-7);
        const int64_t *n = cup_tensor_data(ops[op](c, i, j));
        for (int k = 0; k < 7; k++)
            EXPECT_INT(n[k], want[op][k]);
    }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(bits_of_integers)
{
    static const int32_t a[] = {-1, 6, INT32_MIN, 1}, b[] = {1, 64, 31, -1};
    const int64_t four = 4;
    int32_t y[4];
    cup_context *c = cpu();
    cup_tensor *x = cup_tensor_from(c, CUP_I32, 1, &four, a);
    cup_tensor *by = cup_tensor_from(c, CUP_I32, 1, &four, b);
    EXPECT_INT(cup_tensor_read(cup_shift_right(c, x, by), y, sizeof y), CUP_OK);
    EXPECT(y[0] == -1 && y[1] == 0 && y[2] == -1 && y[3] == 0);
    EXPECT_INT(cup_tensor_read(cup_shift_left(c, x, by), y, sizeof y), CUP_OK);
    EXPECT(y[0] == -2 && y[1] == 0 && y[2] == 0 && y[3] == 0);
    EXPECT_INT(cup_tensor_read(cup_bitwise_xor(c, x, by), y, sizeof y), CUP_OK);
    EXPECT(y[0] == -2 && y[1] == 70 && y[2] == INT32_MIN + 31 && y[3] == -2);
    EXPECT(cup_bitwise_not(c, floats(c, (float[]){1}, 1)) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "bits are those of integers");
    cup_context_free(c);
}

/* Square roots and squares that f32 cannot hold do not stand in the slopes. */
TEST(slopes_far_out)
{
    static const float x[] = {1e30f, 1e-30f};
    cup_context *c = cpu();
    cup_tensor *a = cup_require_grad(floats(c, x, 2)), *b = cup_require_grad(floats(c, x, 2));
    cup_tensor *y = cup_add(c, cup_atan2(c, a, b), cup_asinh(c, a));
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    const float *da = cup_tensor_data(cup_grad(a)), *db = cup_tensor_data(cup_grad(b));
    EXPECT_NEAR((double)da[0] * 1e30, 1.5, 1e-6);
    EXPECT_NEAR((double)da[1] / 1e30, 0.5, 1e-6);
    EXPECT_NEAR((double)db[0] * 1e30, -0.5, 1e-6);
    EXPECT_NEAR((double)db[1] / 1e30, -0.5, 1e-6);
    cup_context_free(c);
}

TEST(sine_of_large_angles)
{
    static const float x[] = {1e5f, 99999999.0f, 1e10f, -3e38f};
    float y[4];
    cup_context *c = cpu();
    read_all(cup_sin(c, floats(c, x, 4)), y, 4);
    for (int i = 0; i < 4; i++)
        EXPECT_NEAR((double)y[i], sin((double)x[i]), 1e-6);
    read_all(cup_cos(c, floats(c, x, 4)), y, 4);
    for (int i = 0; i < 4; i++)
        EXPECT_NEAR((double)y[i], cos((double)x[i]), 1e-6);
    cup_context_free(c);
}

TEST(maximum_keeps_nan_from_either_side)
{
    static const float a[] = {NAN, 1, 2, -0.0f}, b[] = {1, NAN, 3, 0.0f};
    float y[4];
    cup_context *c = cpu();
    read_all(cup_maximum(c, floats(c, a, 4), floats(c, b, 4)), y, 4);
    EXPECT(isnan(y[0]) && isnan(y[1]) && y[2] == 3 && y[3] == 0);
    read_all(cup_minimum(c, floats(c, a, 4), floats(c, b, 4)), y, 4);
    EXPECT(isnan(y[0]) && isnan(y[1]) && y[2] == 2 && y[3] == 0);
    cup_context_free(c);
}

TEST(integers_wrap_and_casts_saturate)
{
    static const int32_t large[] = {INT32_MAX, INT32_MIN};
    static const float wide[] = {300, -300, NAN, 1e20f};
    int64_t two = 2, four = 4;
    int32_t sums[2];
    uint8_t bytes[4];
    cup_context *c = cpu();
    cup_tensor *t = cup_tensor_from(c, CUP_I32, 1, &two, large);
    EXPECT_INT(cup_tensor_read(cup_add(c, t, t), sums, sizeof sums), CUP_OK);
    EXPECT_INT(sums[0], -2);
    EXPECT_INT(sums[1], 0);
    t = cup_tensor_from(c, CUP_F32, 1, &four, wide);
    EXPECT_INT(cup_tensor_read(cup_cast(c, t, CUP_U8), bytes, sizeof bytes), CUP_OK);
    EXPECT_INT(bytes[0], 255);
    EXPECT_INT(bytes[1], 0);
    EXPECT_INT(bytes[2], 0);
    EXPECT_INT(bytes[3], 255);
    cup_context_free(c);
}

TEST(elementwise_says_what_does_not_fit)
{
    int64_t three = 3, four = 4;
    cup_context *c = cpu();
    cup_tensor *a = cup_tensor_new(c, CUP_F32, 1, &three);
    cup_tensor *b = cup_tensor_new(c, CUP_F32, 1, &four);
    EXPECT(cup_add(c, a, b) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "add: [3] f32, [4] f32: sizes 3 and 4 do not broadcast");
    cup_error_clear(c);
    EXPECT(cup_where(c, a, a, a) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "the condition must be bool");
    cup_error_clear(c);
    EXPECT(cup_clamp(c, a, 2, 1) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "low must not be above");
    cup_error_clear(c);
    EXPECT(cup_exp(c, cup_cast(c, a, CUP_I32)) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "convert it with cup_cast");
    cup_error_clear(c);
    EXPECT(cup_cast(c, a, (cup_dtype)77) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "77 is no dtype");
    cup_context_free(c);
}
