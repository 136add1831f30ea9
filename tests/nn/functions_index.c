/* Elements by their places, and other values put there. */
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
    double got[32];
    EXPECT(t && cup_tensor_count(t) == count);
    EXPECT_INT(cup_tensor_read(cup_cast(cup_tensor_context(t), t, CUP_F64), got,
                               (size_t)count * sizeof *got), CUP_OK);
    for (int i = 0; i < count; i++)
        EXPECT_NEAR(got[i], want[i], 1e-6);
}

#define NUMBERS(t, ...)                                                                            \
    expect_numbers(t, (double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / sizeof(double))

static cup_tensor *places(cup_context *c, int ndim, const int64_t *shape, const int64_t *values)
{
    return cup_tensor_from(c, CUP_I64, ndim, shape, values);
}

static void check_index(const char *name)
{
    cup_context *c = device(name);
    cup_tensor *x = cup_reshape(c, cup_arange(c, CUP_F32, 0, 12, NULL), 3, (int64_t[]){2, 3, 2});
    cup_tensor *row = places(c, 2, (int64_t[]){2, 1}, (int64_t[]){1, 0}), *grad;
    cup_tensor *column = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){-1, 1});
    cup_require_grad(x);
    cup_tensor *y = cup_index(c, x, (cup_tensor *[]){row, column}, 2);
    EXPECT_INT(cup_tensor_ndim(y), 3);
    NUMBERS(y, 10, 11, 8, 9, 4, 5, 2, 3);
    cup_tensor *weights = cup_reshape(c, cup_arange(c, CUP_F32, 1, 9, NULL), 3,
                                      (int64_t[]){2, 2, 2});
    EXPECT_INT(cup_gradients(c, cup_sum(c, cup_mul(c, y, weights), NULL, 0, false), &x, 1, &grad),
               CUP_OK);
    NUMBERS(grad, 0, 0, 7, 8, 5, 6, 0, 0, 3, 4, 1, 2);
    NUMBERS(cup_index(c, x, &column, 1), 6, 7, 8, 9, 10, 11, 6, 7, 8, 9, 10, 11);
    cup_context_free(c);
}

TEST(function_index)
{
    check_index("cpu");
}

TEST(gpu_function_index)
{
    check_index("cuda");
}

/* Place 1 is named twice, first by what does not count. */
static void check_put(const char *name)
{
    cup_context *c = device(name);
    float start[] = {1, 2, 3, 4, 5, 6, 7, 8}, given[] = {NAN, 10, 20, 30, 40, 50};
    cup_tensor *x = cup_require_grad(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){4, 2}, start));
    cup_tensor *v = cup_require_grad(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, given));
    cup_tensor *at = places(c, 1, (int64_t[]){3}, (int64_t[]){1, 3, -3}), *grads[2];
    cup_tensor *y = cup_index_put(c, x, v, &at, 1, false);
    NUMBERS(y, 1, 2, 40, 50, 5, 6, 20, 30);
    cup_tensor *weights = cup_reshape(c, cup_arange(c, CUP_F32, 1, 9, NULL), 2,
                                      (int64_t[]){4, 2});
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, weights), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, (cup_tensor *[]){x, v}, 2, grads), CUP_OK);
    NUMBERS(grads[0], 1, 2, 0, 0, 5, 6, 0, 0);
    NUMBERS(grads[1], 0, 0, 7, 8, 3, 4);
    given[0] = 9;
    v = cup_require_grad(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, given));
    y = cup_index_put(c, x, v, &at, 1, true);
    NUMBERS(y, 1, 2, 52, 64, 5, 6, 27, 38);
    loss = cup_sum(c, cup_mul(c, y, weights), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, (cup_tensor *[]){x, v}, 2, grads), CUP_OK);
    NUMBERS(grads[0], 1, 2, 3, 4, 5, 6, 7, 8);
    NUMBERS(grads[1], 3, 4, 7, 8, 3, 4);
    cup_tensor *marks = cup_zeros(c, CUP_BOOL, 2, (int64_t[]){2, 3});
    cup_tensor *both[] = {places(c, 1, (int64_t[]){2}, (int64_t[]){0, 1}),
                          places(c, 1, (int64_t[]){2}, (int64_t[]){2, 0})};
    y = cup_index_put(c, marks, cup_ones(c, CUP_BOOL, 0, NULL), both, 2, false);
    EXPECT(cup_tensor_dtype(y) == CUP_BOOL);
    NUMBERS(y, 0, 0, 1, 1, 0, 0);
    cup_tensor *whole = cup_arange(c, CUP_I64, 0, 4, NULL);
    cup_tensor *none = cup_zeros(c, CUP_I32, 1, (int64_t[]){0});
    NUMBERS(cup_index_put(c, whole, places(c, 1, (int64_t[]){3}, (int64_t[]){7, 8, 9}), &at, 1,
                          false), 0, 9, 2, 8);
    NUMBERS(cup_index_put(c, whole, cup_zeros(c, CUP_I64, 0, NULL), &none, 1, false), 0, 1, 2, 3);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(function_index_put)
{
    check_put("cpu");
}

TEST(gpu_function_index_put)
{
    check_put("cuda");
}

TEST(function_index_refuses)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 3});
    cup_tensor *high = places(c, 1, (int64_t[]){1}, (int64_t[]){3});
    cup_tensor *low = places(c, 1, (int64_t[]){1}, (int64_t[]){-4});
    cup_tensor *one = places(c, 1, (int64_t[]){1}, (int64_t[]){1});
    cup_tensor *lists[][2] = {{high, one}, {one, high}, {one, low}};
    for (int i = 0; i < 3; i++) {
        EXPECT(!cup_index(c, x, lists[i], 2));
        cup_error_clear(c);
        for (int add = 0; add < 2; add++) {
            EXPECT(!cup_index_put(c, x, cup_ones(c, CUP_F32, 0, NULL), lists[i], 2, add));
            cup_error_clear(c);
        }
    }
    EXPECT(!cup_index(c, x, lists[0], 3));
    EXPECT_CONTAINS(cup_error_text(c), "from 1 to the 2");
    cup_error_clear(c);
    EXPECT(!cup_index(c, x, &x, 1));
    EXPECT_CONTAINS(cup_error_text(c), "cup_nonzero");
    cup_error_clear(c);
    EXPECT(!cup_index_put(c, x, one, &one, 1, false));
    EXPECT_CONTAINS(cup_error_text(c), "dtype of x");
    cup_context_free(c);
}

static void check_products(const char *name)
{
    cup_context *c = device(name);
    float rows[] = {2, 3, 0, 4, -1, 5};
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, rows), *grad;
    cup_tensor *y = cup_cumprod(c, cup_require_grad(x), 1, false);
    NUMBERS(y, 2, 6, 0, 4, -4, -20);
    EXPECT_INT(cup_gradients(c, cup_sum(c, y, NULL, 0, false), &x, 1, &grad), CUP_OK);
    NUMBERS(grad, 4, 2, 6, -5, 24, -4);
    NUMBERS(cup_cumprod(c, x, 0, true), 8, -3, 0, 4, -1, 5);
    NUMBERS(cup_cumprod(c, x, -1, true), 0, 0, 0, -20, -5, 5);
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){1, 2, 2}, (float[]){0, 2, 1, 4});
    NUMBERS(cup_inverse(c, cup_require_grad(a)), -2, 1, 0.5, 0);
    cup_tensor *loss = cup_sum(c, cup_inverse(c, a), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, &a, 1, &grad), CUP_OK);
    NUMBERS(grad, -1.5, 0.75, 1, -0.5);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(function_cumprod_and_inverse)
{
    check_products("cpu");
}

TEST(gpu_function_cumprod_and_inverse)
{
    check_products("cuda");
}

static void check_pixels(const char *name)
{
    cup_context *c = device(name);
    cup_tensor *x = cup_reshape(c, cup_arange(c, CUP_F32, 0, 16, NULL), 4,
                                (int64_t[]){1, 8, 1, 2}), *grad;
    cup_tensor *y = cup_pixel_shuffle(c, cup_require_grad(x), 2);
    EXPECT(cup_tensor_size(y, 1) == 2 && cup_tensor_size(y, 2) == 2 && cup_tensor_size(y, 3) == 4);
    NUMBERS(y, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    NUMBERS(cup_pixel_unshuffle(c, y, 2), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    cup_tensor *places = cup_reshape(c, cup_arange(c, CUP_F32, 0, 16, NULL), 4,
                                     (int64_t[]){1, 2, 2, 4});
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, places), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, &x, 1, &grad), CUP_OK);
    NUMBERS(grad, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    cup_tensor *none = cup_zeros(c, CUP_F32, 4, (int64_t[]){0, 9, 2, 0});
    EXPECT_INT(cup_tensor_size(cup_pixel_shuffle(c, none, 3), 2), 6);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT(!cup_pixel_shuffle(c, x, 3));
    EXPECT_CONTAINS(cup_error_text(c), "[N,C f f,H,W]");
    cup_error_clear(c);
    EXPECT(!cup_pixel_unshuffle(c, x, 2));
    EXPECT_CONTAINS(cup_error_text(c), "[N,C,H f,W f]");
    cup_error_clear(c);
    EXPECT(!cup_pixel_shuffle(c, x, 0) && !cup_pixel_unshuffle(NULL, x, 1));
    cup_context_free(c);
}

TEST(function_pixel_shuffle)
{
    check_pixels("cpu");
}

TEST(gpu_function_pixel_shuffle)
{
    check_pixels("cuda");
}
