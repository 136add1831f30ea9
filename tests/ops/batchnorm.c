/* Batchnorm and groupnorm where the table's samples do not go: the running statistics, values far
 * from zero, bad shapes, results that go around the caches. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

static cup_tensor *vector(cup_context *c, int64_t count, const float *data)
{
    return cup_tensor_from(c, CUP_F32, 1, &count, data);
}

TEST(batchnorm_moves_the_running_statistics)
{
    float x[] = {1, 10, 2, 20, 3, 30, 6, 60}, mean[] = {0, 100}, var[] = {1, 1}, y[8];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *in = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){4, 2}, x);
    cup_tensor *m = vector(c, 2, mean), *v = vector(c, 2, var);
    cup_tensor *out = cup_batchnorm(c, in, NULL, NULL, m, v, 1,
                                    CUP_OPTIONS(cup_batchnorm_options, .train = true));
    EXPECT(cup_tensor_read(out, y, sizeof y) == CUP_OK);
    EXPECT_NEAR(y[0], -2 / sqrt(3.5 + 1e-5), 5e-7);
    EXPECT_NEAR(y[7], 30 / sqrt(350 + 1e-5), 5e-7);
    EXPECT(cup_tensor_read(m, mean, sizeof mean) == CUP_OK);
    EXPECT(cup_tensor_read(v, var, sizeof var) == CUP_OK);
    EXPECT_NEAR(mean[0], 0.3, 1e-6);
    EXPECT_NEAR(mean[1], 93, 1e-5);
    EXPECT_NEAR(var[0], 0.9 + 0.1 * 14 / 3, 1e-6);
    EXPECT_NEAR(var[1], 0.9 + 0.1 * 1400 / 3, 1e-4);
    cup_context_free(c);
}

TEST(batchnorm_outside_training_uses_them)
{
    float x[] = {1, 10, 2, 20}, mean[] = {1, 5}, var[] = {4, 0}, y[4];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *in = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 2}, x);
    cup_tensor *m = vector(c, 2, mean), *v = vector(c, 2, var);
    cup_tensor *out =
        cup_batchnorm(c, in, NULL, NULL, m, v, 1, CUP_OPTIONS(cup_batchnorm_options, .eps = 0.25));
    EXPECT(cup_tensor_read(out, y, sizeof y) == CUP_OK);
    EXPECT_NEAR(y[2], 1 / sqrt(4.25), 1e-6);
    EXPECT_NEAR(y[3], 30, 1e-5);
    EXPECT(cup_tensor_read(m, mean, sizeof mean) == CUP_OK);
    EXPECT(mean[0] == 1 && mean[1] == 5);
    cup_context_free(c);
}

TEST(batchnorm_far_from_zero)
{
    enum { COUNT = 500 };
    float x[COUNT], y[COUNT];
    double mean = 0, squares = 0;
    for (int i = 0; i < COUNT; i++)
        x[i] = (i ? 1e4f : -1e6f) + (float)test_uniform(-1, 1);
    for (int i = 0; i < COUNT; i++)
        mean += (double)x[i] / COUNT;
    for (int i = 0; i < COUNT; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean) / COUNT;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *in = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){10, 1, 50}, x);
    cup_tensor *out = cup_batchnorm(c, in, NULL, NULL, NULL, NULL, 1,
                                    CUP_OPTIONS(cup_batchnorm_options, .train = true));
    EXPECT(cup_tensor_read(out, y, sizeof y) == CUP_OK);
    for (int i = 0; i < COUNT; i++)
        EXPECT_NEAR(y[i], ((double)x[i] - mean) / sqrt(squares + 1e-5), 4e-6);
    cup_context_free(c);
}

static void expect_failure(cup_context *c, cup_tensor *out, const char *part)
{
    EXPECT(!out);
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

TEST(batchnorm_and_groupnorm_say_what_is_wrong)
{
    float ones[12] = {1};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){2, 3, 2}, ones);
    cup_tensor *two = vector(c, 2, ones), *three = vector(c, 3, ones);
    expect_failure(c,
                   cup_batchnorm(c, x, two, NULL, NULL, NULL, 1,
                                 CUP_OPTIONS(cup_batchnorm_options, .train = true)),
                   "gamma");
    expect_failure(c,
                   cup_batchnorm(c, x, NULL, NULL, three, NULL, 1,
                                 CUP_OPTIONS(cup_batchnorm_options, .train = true)),
                   "together");
    expect_failure(c, cup_batchnorm(c, x, NULL, NULL, NULL, NULL, 1, NULL), "running mean");
    expect_failure(c,
                   cup_batchnorm(c, x, NULL, NULL, NULL, NULL, 5,
                                 CUP_OPTIONS(cup_batchnorm_options, .train = true)),
                   "axis 5");
    expect_failure(c,
                   cup_batchnorm(c, x, NULL, NULL, three, three, 1,
                                 CUP_OPTIONS(cup_batchnorm_options, .train = true, .momentum = 2)),
                   "momentum");
    expect_failure(c,
                   cup_batchnorm(c, three, NULL, NULL, NULL, NULL, 0,
                                 CUP_OPTIONS(cup_batchnorm_options, .train = true)),
                   "more than one");
    expect_failure(c, cup_groupnorm(c, x, NULL, NULL, 2, 1, NULL), "2 groups");
    expect_failure(c, cup_groupnorm(c, x, NULL, NULL, 1, 0, NULL), "axis");
    cup_context_free(c);
}

/* A result of over 32 MB is written around the caches: the same bits as those of its part. */
TEST(groupnorm_of_a_large_batch_is_that_of_its_parts)
{
    enum { EACH = 8 * 16384, BATCH = 65 };
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_uniform(c, CUP_F32, 3, (int64_t[]){BATCH, 8, 16384}, -1, 1);
    cup_tensor *all = cup_groupnorm(c, x, NULL, NULL, 2, 1, NULL);
    float *whole = malloc((size_t)BATCH * EACH * 4), *part = malloc(EACH * 4);
    EXPECT(cup_tensor_read(all, whole, (size_t)BATCH * EACH * 4) == CUP_OK);
    for (int64_t i = 0; i < BATCH; i += 32) {
        cup_tensor *one = cup_slice(c, x, (int64_t[]){i, 0, 0}, 3, (int64_t[]){1, -1, -1}, 3);
        one = cup_groupnorm(c, one, NULL, NULL, 2, 1, NULL);
        EXPECT(cup_tensor_read(one, part, EACH * 4) == CUP_OK);
        for (int k = 0; k < EACH; k++)
            EXPECT(part[k] == whole[i * EACH + k]);
    }
    free(whole);
    free(part);
    cup_context_free(c);
}

/* Batchnorm with a tensor that is added and relu, in one pass or one after the other. */
static cup_tensor *behind(cup_context *c, cup_tensor **in, int axis, bool relu, bool one_pass)
{
    cup_batchnorm_options o = {.size = sizeof o, .train = true};
    o.relu = one_pass && relu;
    o.residual = one_pass ? in[3] : NULL;
    cup_tensor *y = cup_batchnorm(c, in[0], in[1], in[2], NULL, NULL, axis, &o);
    y = one_pass ? y : cup_add(c, y, in[3]);
    return relu && !one_pass ? cup_relu(c, y) : y;
}

/* Planes and columns, sizes whose bits do not fill bytes. */
static void check_behind(cup_dtype dtype, int axis, const int64_t *shape, bool relu)
{
    enum { MOST = 4096 };
    static float got[MOST], want[MOST];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    int64_t channels = shape[axis < 0 ? 3 : 1], count = shape[0] * shape[1] * shape[2] * shape[3];
    cup_tensor *in[4] = {cup_normal(c, dtype, 4, shape, 1, 2),
                         cup_uniform(c, dtype, 1, &channels, 0.5, 1.5),
                         cup_normal(c, dtype, 1, &channels, 0, 1),
                         cup_normal(c, dtype, 4, shape, 0, 1)};
    cup_tensor *dy = cup_normal(c, dtype, 4, shape, 0, 1), *y[2], *d[2][4];
    for (int i = 0; i < 4; i++)
        cup_require_grad(in[i]);
    for (int i = 0; i < 2; i++) {
        y[i] = behind(c, in, axis, relu, i == 0);
        cup_tensor *loss = cup_sum(c, cup_cast(c, cup_mul(c, y[i], dy), CUP_F32), NULL, 0, false);
        EXPECT_INT(cup_gradients(c, loss, in, 4, d[i]), CUP_OK);
    }
    for (int i = -1; i < 4; i++) {
        size_t bytes = (size_t)(i == 1 || i == 2 ? channels : count) * sizeof *got;
        EXPECT(bytes <= sizeof got);
        cup_tensor_read(cup_cast(c, i < 0 ? y[0] : d[0][i], CUP_F32), got, bytes);
        cup_tensor_read(cup_cast(c, i < 0 ? y[1] : d[1][i], CUP_F32), want, bytes);
        for (size_t k = 0; k < bytes / sizeof *got; k++)
            EXPECT_NEAR(got[k], want[k], 2e-5 * (1 + fabs((double)want[k])));
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

TEST(batchnorm_with_what_stands_behind)
{
    check_behind(CUP_F32, 1, (int64_t[]){3, 5, 7, 3}, true);
    check_behind(CUP_F32, -1, (int64_t[]){3, 5, 7, 3}, true);
    check_behind(CUP_F32, -1, (int64_t[]){4, 4, 4, 33}, true);
    check_behind(CUP_F64, 1, (int64_t[]){2, 3, 5, 5}, true);
    check_behind(CUP_F32, 1, (int64_t[]){3, 5, 7, 3}, false);
}

TEST(batchnorm_refuses_another_residual)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_zeros(c, CUP_F32, 2, (int64_t[]){4, 3});
    cup_tensor *other = cup_zeros(c, CUP_F32, 2, (int64_t[]){4, 1});
    EXPECT(!cup_batchnorm(c, x, NULL, NULL, NULL, NULL, -1,
                          CUP_OPTIONS(cup_batchnorm_options, .train = true, .residual = other)));
    EXPECT_CONTAINS(cup_error_text(c), "the residual must have the shape");
    cup_error_clear(c);
    cup_tensor *narrow = cup_cast(c, x, CUP_BF16);
    EXPECT(!cup_batchnorm(c, narrow, NULL, NULL, NULL, NULL, -1,
                          CUP_OPTIONS(cup_batchnorm_options, .train = true, .residual = x)));
    EXPECT_CONTAINS(cup_error_text(c), "different dtypes");
    cup_context_free(c);
}
