/* What ops mean at the edges of their inputs: places where two readings are possible. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static void expect_error(cup_context *c, const char *part)
{
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

static cup_tensor *floats(cup_context *c, int count, const float *values)
{
    return cup_tensor_from(c, CUP_F32, 1, (int64_t[]){count}, values);
}

/* The norm is that of the sum that is given back, in every dtype. */
TEST(meaning_of_a_sum_and_its_norm)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F16, CUP_BF16, CUP_F64};
    const int64_t shape[] = {64, 3};
    cup_context *c = cpu();
    for (int i = 0; i < 8; i++) {
        cup_dtype dtype = dtypes[i / 2];
        cup_tensor *x = cup_uniform(c, dtype, 2, shape, -1, 1), *sum, *y, *plain;
        cup_tensor *residual = cup_uniform(c, dtype, 2, shape, -1, 1);
        if (i % 2) {
            cup_add_layernorm(c, x, residual, NULL, NULL, 1e-5, &y, &sum);
            plain = cup_layernorm(c, sum, NULL, NULL, 1e-5);
        } else {
            cup_add_rmsnorm(c, x, residual, NULL, 1e-5, &y, &sum);
            plain = cup_rmsnorm(c, sum, NULL, 1e-5);
        }
        cup_tensor *apart = cup_abs(c, cup_sub(c, y, plain));
        EXPECT_NEAR(cup_tensor_item(cup_max(c, apart, NULL, 0, false)), 0, 0);
    }
    /* By hand: of one element the layernorm is 0 whatever was rounded, and so is its gradient. */
    cup_tensor *one = cup_require_grad(cup_full(c, CUP_BF16, 2, (int64_t[]){1, 1}, 1));
    cup_tensor *tiny = cup_full(c, CUP_BF16, 2, (int64_t[]){1, 1}, 0.001), *y, *sum;
    cup_add_layernorm(c, one, tiny, NULL, NULL, 1e-5, &y, &sum);
    EXPECT_NEAR(cup_tensor_item(y), 0, 0);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(cup_grad(one)), 0, 0);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(meaning_of_zero_to_the_power_zero)
{
    cup_context *c = cpu();
    cup_tensor *a = cup_require_grad(floats(c, 4, (float[]){0, 0, 2, 0}));
    cup_tensor *b = cup_require_grad(floats(c, 4, (float[]){0, 2, 0, 1}));
    const double want_a[] = {0, 0, 0, 1}, want_b[] = {0, 0, 0.69314718055994531, 0};
    for (int formula = 0; formula < 2; formula++) {
        cup_expr *e = cup_expr_new(c, "a b", NULL, "a^b");
        cup_tensor *y = formula ? cup_expr_call(e, (cup_tensor *[]){a, b}, NULL, NULL)
                                : cup_pow(c, a, b);
        EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
        const float *da = cup_tensor_data(cup_grad(a)), *db = cup_tensor_data(cup_grad(b));
        for (int i = 0; i < 4; i++) {
            EXPECT_NEAR((double)da[i], want_a[i], 0);
            EXPECT_NEAR((double)db[i], want_b[i], 1e-7);
        }
        cup_grad_clear(a);
        cup_grad_clear(b);
        cup_expr_free(e);
    }
    cup_context_free(c);
}

/* Numbers that doubles cannot tell apart. */
TEST(meaning_of_large_integers)
{
    const int64_t big = (INT64_C(1) << 53) + 1, values[] = {big - 1, big, big + 2, big + 1};
    const int64_t four[] = {4};
    cup_context *c = cpu();
    cup_tensor *x = cup_tensor_from(c, CUP_I64, 1, four, values), *sorted, *places;
    EXPECT_NEAR(cup_tensor_item(cup_argmax(c, x, NULL, 0, false)), 2, 0);
    EXPECT_NEAR(cup_tensor_item(cup_argmin(c, x, NULL, 0, false)), 0, 0);
    EXPECT_INT(*(int64_t *)cup_tensor_data(cup_max(c, x, NULL, 0, false)), big + 2);
    EXPECT_INT(*(int64_t *)cup_tensor_data(cup_min(c, x, NULL, 0, false)), big - 1);
    EXPECT_INT(*(int64_t *)cup_tensor_data(cup_sum(c, x, NULL, 0, false)), 4 * big + 2);
    cup_sort(c, x, 0, true, &sorted, &places);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(((int64_t *)cup_tensor_data(sorted))[i], big + 2 - i);
    cup_top_k(c, x, 1, 0, CUP_OPTIONS(cup_top_k_options, .smallest = true), &sorted, &places);
    EXPECT_INT(*(int64_t *)cup_tensor_data(sorted), big - 1);
    const int64_t *sums = cup_tensor_data(cup_cumsum(c, x, 0, false));
    EXPECT_INT(sums[3], 4 * big + 2);
    const bool *less = cup_tensor_data(
        cup_less(c, x, cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, &big)));
    EXPECT(less[0] && !less[1] && !less[2] && !less[3]);
    cup_tensor *twice[] = {x, x};
    EXPECT_INT(((int64_t *)cup_tensor_data(cup_concat(c, twice, 2, 0)))[5], big);
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){2}, (int32_t[]){1, 1});
    EXPECT_INT(*(int64_t *)cup_tensor_data(cup_gather(c, x, ids, 0)), big);
    EXPECT_INT(*(int64_t *)cup_tensor_data(cup_index_select(c, x, ids, 0)), big);
    /* 2^60 + 2^36 lies between two floats, and the 1 behind it decides; a double has lost it. */
    const int64_t between = (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1;
    cup_tensor *cast = cup_cast(c, cup_tensor_from(c, CUP_I64, 1, (int64_t[]){1}, &between),
                                CUP_F32);
    EXPECT_NEAR(cup_tensor_item(cast), 0x1p60 + 0x1p37, 0);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(meaning_of_casts_beyond_f8)
{
    const float x[] = {57344, 61439, 61440, INFINITY, -INFINITY, NAN, -1e9f, 449};
    const double e5m2[] = {57344, 57344, INFINITY, INFINITY, -INFINITY, NAN, -INFINITY, 448};
    cup_context *c = cpu();
    for (int which = 0; which < 2; which++) {
        cup_tensor *t = cup_cast(c, floats(c, 8, x), which ? CUP_F8E5M2 : CUP_F8E4M3);
        const float *back = cup_tensor_data(cup_cast(c, t, CUP_F32));
        for (int i = 0; i < 8; i++) {
            double want = which ? e5m2[i] : isnan(x[i]) ? NAN : x[i] < 0 ? -448 : 448;
            EXPECT(isnan(want) ? isnan(back[i]) : (double)back[i] == want);
        }
    }
    /* What is quantized saturates. */
    cup_tensor *codes, *scale;
    cup_quantize(c, floats(c, 3, (float[]){3e38f, -3e38f, 1}), CUP_F8E5M2, NULL, &codes, &scale);
    const float *back = cup_tensor_data(cup_cast(c, codes, CUP_F32));
    EXPECT(back[0] == 57344 && back[1] == -57344);
    cup_context_free(c);
}

TEST(meaning_of_attributes_that_are_refused)
{
    const int64_t image[] = {1, 1, 8, 8}, three[] = {2, 2, 2}, axes[] = {0, 0};
    cup_context *c = cpu();
    cup_tensor *x = cup_full(c, CUP_F32, 4, image, 1);
    static const double bad[] = {-1e-5, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        EXPECT(!cup_layernorm(c, x, NULL, NULL, bad[i]));
        expect_error(c, "eps is");
        EXPECT(!cup_rmsnorm(c, x, NULL, bad[i]));
        expect_error(c, "eps is");
        EXPECT(!cup_groupnorm(c, x, NULL, NULL, 1, 1,
                              CUP_OPTIONS(cup_groupnorm_options, .eps = bad[i])));
        expect_error(c, "eps is");
        EXPECT(!cup_batchnorm(c, x, NULL, NULL, NULL, NULL, 1,
                              CUP_OPTIONS(cup_batchnorm_options, .train = true, .eps = bad[i])));
        expect_error(c, "eps is");
    }
    EXPECT(!cup_avg_pool2d(c, x, three, 3, NULL));
    expect_error(c, "window has 3 numbers");
    EXPECT(
        !cup_avg_pool2d(c, x, three, 2, CUP_OPTIONS(cup_avg_pool2d_options, .stride = {three, 3})));
    expect_error(c, "stride has 3 numbers");
    EXPECT(!cup_max_pool2d(c, x, NULL, 0, NULL));
    expect_error(c, "window has 0 numbers");
    EXPECT(!cup_max_pool2d(c, x, three, 1,
                           CUP_OPTIONS(cup_max_pool2d_options, .padding = {three, 3})));
    expect_error(c, "padding has 3 numbers");
    EXPECT(!cup_sum(c, x, axes, 2, false));
    expect_error(c, "named twice");
    EXPECT(!cup_reshape(c, x, 2, NULL));
    expect_error(c, "is NULL");
    EXPECT(!cup_concat(c, NULL, 2, 0));
    expect_error(c, "list of them is NULL");
    EXPECT(!cup_tensor_new(c, CUP_F32, 2, NULL));
    expect_error(c, "shape is NULL");
    cup_context_free(c);
}

/* At its corners the slope is that of the side on which it goes on straight. */
TEST(meaning_of_a_corner_of_hardswish)
{
    cup_context *c = cpu();
    cup_tensor *x = cup_require_grad(floats(c, 4, (float[]){-3, 3, 0, 1}));
    const double want[] = {0, 1, 0.5, 5.0 / 6};
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_hardswish(c, x), NULL, 0, false)), CUP_OK);
    const float *dx = cup_tensor_data(cup_grad(x));
    for (int i = 0; i < 4; i++)
        EXPECT_NEAR((double)dx[i], want[i], 1e-7);
    cup_context_free(c);
}
