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
