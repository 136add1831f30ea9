/* Adaptive pooling where it must equal pooling over windows, over everything, and where it cannot
 * be. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

static cup_tensor *adaptive(cup_context *c, cup_tensor *x, bool max, int64_t height, int64_t width)
{
    const int64_t size[] = {height, width};
    return max ? cup_adaptive_max_pool2d(c, x, size, 2, false)
               : cup_adaptive_avg_pool2d(c, x, size, 2, false);
}

static void expect_equal(cup_tensor *a, cup_tensor *b)
{
    EXPECT(a && b && a->count == b->count);
    for (int64_t i = 0; i < a->count; i++)
        EXPECT_NEAR(((float *)a->data)[i], ((float *)b->data)[i], 1e-6);
}

TEST(adaptive_pooling_equals_pooling_where_windows_are_alike)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_uniform(c, CUP_F32, 4, (int64_t[]){2, 3, 8, 12}, -1, 1);
    const int64_t window[] = {2, 4};
    expect_equal(adaptive(c, x, false, 4, 3), cup_avg_pool2d(c, x, window, 2, NULL));
    expect_equal(adaptive(c, x, true, 4, 3), cup_max_pool2d(c, x, window, 2, NULL));
    expect_equal(adaptive(c, x, false, 1, 1), cup_mean(c, x, (int64_t[]){2, 3}, 2, true));
    expect_equal(adaptive(c, x, true, 8, 12), x);
    cup_context_free(c);
}

TEST(adaptive_pooling_gives_each_element_its_share)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_full(c, CUP_F32, 4, (int64_t[]){1, 1, 1, 5}, 1);
    cup_require_grad(x);
    cup_tensor *y = adaptive(c, x, false, 1, 3); /* elements 0-1, 1-3, 3-4 */
    EXPECT(cup_backward(c, cup_sum(c, y, NULL, 0, false)) == CUP_OK);
    const float want[] = {0.5F, 0.5F + 1 / 3.0F, 1 / 3.0F, 1 / 3.0F + 0.5F, 0.5F};
    for (int i = 0; i < 5; i++)
        EXPECT_NEAR(((float *)cup_grad(x)->data)[i], want[i], 1e-6);
    cup_context_free(c);
}

TEST(adaptive_pooling_says_what_is_wrong)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_full(c, CUP_F32, 4, (int64_t[]){1, 1, 4, 4}, 1);
    EXPECT(!adaptive(c, x, false, 0, 3));
    EXPECT_CONTAINS(cup_error_text(c), "sides of 4 and 0 must be from 1 to 2^29");
    cup_error_clear(c);
    EXPECT(!adaptive(c, cup_reshape(c, x, 2, (int64_t[]){4, 4}), true, 1, 1));
    EXPECT_CONTAINS(cup_error_text(c), "adaptive_max_pool2d");
    cup_context_free(c);
}
