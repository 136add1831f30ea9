/* Tensors made from nothing, copies into tensors, flips and triangles: values by hand, and what is
 * refused. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

static void expect_values(cup_tensor *t, const double *want, int64_t count)
{
    EXPECT(t != NULL);
    EXPECT_INT(t->count, count);
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR(cup__load(t, cup__offset_of(t, i)), want[i], 0);
}

static void expect_error(cup_context *c, cup_status status, const char *part)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

static cup_tensor *counted(cup_context *c, int64_t rows, int64_t columns)
{
    double end = (double)(rows * columns);
    return cup_reshape(c, cup_arange(c, CUP_F32, 0, end, NULL), 2, (int64_t[]){rows, columns});
}

TEST(made_from_nothing)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t shape[] = {2, 2};
    expect_values(cup_zeros(c, CUP_I32, 2, shape), (double[]){0, 0, 0, 0}, 4);
    expect_values(cup_ones(c, CUP_BF16, 2, shape), (double[]){1, 1, 1, 1}, 4);
    expect_values(cup_arange(c, CUP_F64, 1, -1.25, CUP_OPTIONS(cup_arange_options, .step = -0.75)),
                  (double[]){1, 0.25, -0.5}, 3);
    expect_values(cup_arange(c, CUP_I64, 9007199254740988.0, 9007199254740992.0,
                             CUP_OPTIONS(cup_arange_options, .step = 2)),
                  (double[]){9007199254740988.0, 9007199254740990.0}, 2);
    expect_values(cup_eye(c, CUP_F16, 2, 3, CUP_OPTIONS(cup_eye_options, .diagonal = 1)),
                  (double[]){0, 1, 0, 0, 0, 1}, 6);
    expect_values(cup_eye(c, CUP_F32, 3, 1, CUP_OPTIONS(cup_eye_options, .diagonal = INT64_MIN)),
                  (double[]){0, 0, 0}, 3);
    EXPECT_INT(cup_tensor_count(cup_arange(c, CUP_F32, 3, 3, NULL)), 0);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(arange_refuses)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(!cup_arange(c, CUP_F32, 0, 1, CUP_OPTIONS(cup_arange_options, .step = NAN)));
    expect_error(c, CUP_ARGUMENT, "finite");
    EXPECT(!cup_arange(c, CUP_F32, 0, INFINITY, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "arange: from 0 to inf by steps of 1");
    expect_error(c, CUP_ARGUMENT, "finite");
    EXPECT(!cup_arange(c, CUP_I32, 0, 2, CUP_OPTIONS(cup_arange_options, .step = 0.5)));
    expect_error(c, CUP_ARGUMENT, "whole");
    EXPECT(cup_arange(c, CUP_I32, 0, 3e9, CUP_OPTIONS(cup_arange_options, .step = 1e9)));
    EXPECT(!cup_arange(c, CUP_I32, 0, 3e9 + 1, CUP_OPTIONS(cup_arange_options, .step = 1e9)));
    expect_error(c, CUP_ARGUMENT, "whole");
    EXPECT(!cup_arange(c, CUP_U8, 0, 3, NULL));
    expect_error(c, CUP_DTYPE, "dtype");
    EXPECT(!cup_arange(c, CUP_F32, 0, 1, CUP_OPTIONS(cup_arange_options, .step = 1e-300)));
    expect_error(c, CUP_SHAPE, "too large");
    EXPECT(!cup_eye(c, CUP_F32, -1, 2, NULL));
    expect_error(c, CUP_SHAPE, "negative");
    cup_context_free(c);
}

TEST(copies_into_tensors)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *y = cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 3}), *row = counted(c, 1, 3);
    EXPECT_INT(cup_copy_into(c, y, row), CUP_OK);
    expect_values(y, (double[]){0, 1, 2, 0, 1, 2}, 6);
    cup_tensor *column = cup_permute(c, cup_slice(c, y, (int64_t[]){0, 1}, 2, (int64_t[]){2, 1}, 2),
                                     (int64_t[]){1, 0}, 2);
    EXPECT_INT(cup_copy_into(c, column, cup_full(c, CUP_F32, 0, NULL, 7)), CUP_OK);
    expect_values(y, (double[]){0, 7, 2, 0, 7, 2}, 6);
    EXPECT(cup_copy_into(c, row, y) != CUP_OK);
    expect_error(c, CUP_SHAPE, "y would have to be [2,3]");
    EXPECT(cup_copy_into(c, y, column) != CUP_OK);
    expect_error(c, CUP_SHAPE, "broadcast");
    EXPECT(cup_copy_into(c, y, y) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "shares memory");
    EXPECT(cup_copy_into(c, cup_broadcast(c, row, 2, (int64_t[]){2, 3}), y) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "repeats one element");
    EXPECT(cup_copy_into(c, y, cup_zeros(c, CUP_F64, 1, (int64_t[]){3})) != CUP_OK);
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_context_free(c);
}

TEST(copies_into_what_gradients_know)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *w = cup_require_grad(counted(c, 2, 2)), *x = counted(c, 2, 2);
    cup_tensor *h = cup_mul(c, w, w);
    EXPECT(cup_copy_into(c, h, x) != CUP_OK);
    expect_error(c, CUP_STATE, "recorded result");
    EXPECT(cup_copy_into(c, x, w) != CUP_OK);
    expect_error(c, CUP_UNSUPPORTED, "it has no gradient");
    cup_grad_recording(c, false);
    EXPECT_INT(cup_copy_into(c, w, x), CUP_OK);
    cup_grad_recording(c, true);
    EXPECT(cup_backward(c, cup_sum(c, h, NULL, 0, false)) != CUP_OK); /* w was saved */
    cup_context_free(c);
}

TEST(flips_and_triangles)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = counted(c, 2, 3), *turned = cup_permute(c, x, (int64_t[]){1, 0}, 2);
    expect_values(cup_flip(c, x, NULL, 0), (double[]){5, 4, 3, 2, 1, 0}, 6);
    expect_values(cup_flip(c, turned, (int64_t[]){0}, 1), (double[]){2, 5, 1, 4, 0, 3}, 6);
    expect_values(cup_tril(c, turned, 0), (double[]){0, 0, 1, 4, 2, 5}, 6);
    expect_values(cup_triu(c, x, 1), (double[]){0, 1, 2, 0, 0, 5}, 6);
    expect_values(cup_triu(c, x, INT64_MIN), (double[]){0, 1, 2, 3, 4, 5}, 6);
    expect_values(cup_tril(c, x, INT64_MIN), (double[]){0, 0, 0, 0, 0, 0}, 6);
    EXPECT(!cup_flip(c, x, (int64_t[]){0, -2}, 2));
    expect_error(c, CUP_SHAPE, "named twice");
    EXPECT(!cup_flip(c, x, (int64_t[]){2}, 1));
    EXPECT(cup_error(c) != CUP_OK);
    cup_error_clear(c);
    EXPECT(!cup_tril(c, cup_arange(c, CUP_F32, 0, 3, NULL), 0));
    EXPECT(cup_error(c) != CUP_OK);
    cup_context_free(c);
}

TEST(pads_and_repeats)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = counted(c, 2, 2);
    const int64_t one[] = {1, 0}, two[] = {0, 2}, large[] = {INT64_MAX, 0}, less[] = {-1, 0};
    expect_values(cup_pad(c, x, one, 2, two, 2, CUP_OPTIONS(cup_pad_options, .value = 9)),
                  (double[]){9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9}, 12);
    expect_values(cup_repeat(c, x, (int64_t[]){1, 2}, 2), (double[]){0, 1, 0, 1, 2, 3, 2, 3}, 8);
    expect_values(cup_repeat(c, x, (int64_t[]){2, 1, 1}, 3), (double[]){0, 1, 2, 3, 0, 1, 2, 3}, 8);
    EXPECT(!cup_pad(c, x, less, 2, two, 2, NULL));
    expect_error(c, CUP_ARGUMENT, "negative");
    EXPECT(!cup_pad(c, x, large, 2, two, 2, NULL));
    expect_error(c, CUP_SHAPE, "too large");
    EXPECT(!cup_pad(c, x, one, 2, two, 1, NULL));
    expect_error(c, CUP_SHAPE, "one of each");
    EXPECT(!cup_repeat(c, x, (int64_t[]){2}, 1));
    expect_error(c, CUP_SHAPE, "one for each");
    EXPECT(!cup_repeat(c, x, less, 2));
    expect_error(c, CUP_ARGUMENT, "times");
    cup_context_free(c);
}
