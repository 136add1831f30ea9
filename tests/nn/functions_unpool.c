/* Pooling that says where, the way back, and transforms of real numbers. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

static void expect_numbers(cup_tensor *t, const double *want, int count)
{
    double got[64];
    EXPECT(t && cup_tensor_count(t) == count);
    EXPECT_INT(cup_tensor_read(cup_cast(cup_tensor_context(t), t, CUP_F64), got,
                               (size_t)count * sizeof *got), CUP_OK);
    for (int i = 0; i < count; i++)
        EXPECT_NEAR(got[i], want[i], 1e-5);
}

#define NUMBERS(t, ...)                                                                            \
    expect_numbers(t, (double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / sizeof(double))

/* Windows of 2x2 with a stride of 2; the image lies row by row, or with two equal channels last. */
static void check_places(const char *name)
{
    cup_context *c = device(name);
    const float image[] = {1, 9, 2, 2, 3, 4, 8, 2, 5, 5, 0, -1, 5, 5, -INFINITY, 7};
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){1, 1, 4, 4}, image), *y, *at, *grad;
    cup_require_grad(x);
    EXPECT_INT(cup_max_pool2d_indices(c, x, (int64_t[]){2}, 1, NULL, &y, &at), CUP_OK);
    NUMBERS(y, 9, 8, 5, 7);
    NUMBERS(at, 1, 6, 8, 15);
    cup_tensor *back = cup_max_unpool2d(c, y, at, 4, 4, false);
    NUMBERS(back, 0, 9, 0, 0, 0, 0, 8, 0, 5, 0, 0, 0, 0, 0, 0, 7);
    cup_tensor *loss = cup_sum(c, cup_square(c, back), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, &x, 1, &grad), CUP_OK);
    NUMBERS(grad, 0, 18, 0, 0, 0, 0, 16, 0, 10, 0, 0, 0, 0, 0, 0, 14);
    cup_tensor *last = cup_repeat(c, cup_reshape(c, x, 4, (int64_t[]){1, 4, 4, 1}),
                                  (int64_t[]){1, 1, 1, 2}, 4);
    EXPECT_INT(cup_max_pool2d_indices(c, last, (int64_t[]){3}, 1,
                                      CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(2),
                                                  .padding = CUP_INTS(1), .channels_last = true),
                                      NULL, &at), CUP_OK);
    NUMBERS(at, 1, 1, 1, 1, 8, 8, 6, 6);
    cup_tensor *picked = cup_max_unpool2d(c, cup_ones(c, CUP_F32, 4, (int64_t[]){1, 2, 2, 2}), at,
                                          3, 3, true);
    NUMBERS(picked, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1);
    cup_context_free(c);
}

TEST(function_pool_indices)
{
    check_places("cpu");
}

TEST(gpu_function_pool_indices)
{
    check_places("cuda");
}

TEST(function_unpool_refuses)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_ones(c, CUP_F32, 4, (int64_t[]){1, 1, 1, 1}), *y = x, *at = x;
    cup_tensor *far = cup_full(c, CUP_I64, 4, (int64_t[]){1, 1, 1, 1}, 6);
    EXPECT(!cup_max_unpool2d(c, x, far, 2, 3, false));
    EXPECT(cup_error(c) != CUP_OK);
    cup_error_clear(c);
    EXPECT(!cup_max_unpool2d(c, x, far, 0, 3, false));
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_error_clear(c);
    EXPECT(cup_max_pool2d_indices(c, x, NULL, 1, NULL, &y, &at) != CUP_OK);
    EXPECT(!y && !at);
    cup_context_free(c);
}

/* Of n numbers that are a wave and a step; there and back again, and by the plain sum. */
static void check_real(cup_context *c, int n)
{
    float values[300];
    for (int i = 0; i < 2 * n; i++)
        values[i] = (float)sin(0.7 * i) + (float)(i % 3);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){2, n, 1}, values), *grad;
    cup_require_grad(x);
    cup_tensor *y = cup_rfft(c, x, 1);
    EXPECT_INT(cup_tensor_size(y, 1), n / 2 + 1);
    EXPECT_INT(cup_tensor_size(y, 3), 2);
    float got[400];
    EXPECT_INT(cup_tensor_read(cup_copy(c, y), got, (size_t)(n / 2 + 1) * 4 * sizeof *got), CUP_OK);
    for (int k = 0; k <= n / 2; k++) {
        double re = 0, im = 0;
        for (int j = 0; j < n; j++) {
            re += values[n + j] * cos(2 * M_PI * j * k / n);
            im -= values[n + j] * sin(2 * M_PI * j * k / n);
        }
        EXPECT_NEAR(got[2 * (n / 2 + 1 + k)], re, 1e-3);
        EXPECT_NEAR(got[2 * (n / 2 + 1 + k) + 1], im, 1e-3);
    }
    cup_tensor *back = cup_irfft(c, y, n, 1);
    EXPECT_INT(cup_tensor_ndim(back), 3);
    cup_tensor *error = cup_sub(c, back, x);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, cup_square(c, error), NULL, 0, false)), 0, 1e-6);
    cup_tensor *loss = cup_sum(c, cup_mul(c, back, x), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, &x, 1, &grad), CUP_OK);
    error = cup_sub(c, grad, cup_scale(c, x, 2));
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, cup_square(c, error), NULL, 0, false)), 0, 1e-6);
}

TEST(function_transforms_of_real_numbers)
{
    const int sizes[] = {1, 2, 3, 8, 15, 131, 144};
    for (int i = 0; i < 7; i++) {
        cup_context *c = device("cpu");
        check_real(c, sizes[i]);
        cup_context_free(c);
    }
}

TEST(gpu_function_transforms_of_real_numbers)
{
    const int sizes[] = {2, 15, 131};
    for (int i = 0; i < 3; i++) {
        cup_context *c = device("cuda");
        check_real(c, sizes[i]);
        cup_context_free(c);
    }
}

TEST(function_transforms_refuse)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_ones(c, CUP_F32, 2, (int64_t[]){3, 2});
    EXPECT(!cup_irfft(c, x, 6, 0));
    EXPECT_CONTAINS(cup_error_text(c), "4 pairs");
    cup_error_clear(c);
    EXPECT(!cup_irfft(c, x, 3, 1));
    cup_error_clear(c);
    EXPECT(!cup_rfft(c, cup_cast(c, x, CUP_BF16), 0));
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_error_clear(c);
    EXPECT(!cup_fft(c, x, 1, false));
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_context_free(c);
}
