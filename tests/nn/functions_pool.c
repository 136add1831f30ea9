/* Pooling in one and three dimensions, local response normalisation, places in order and bags of
 * embeddings. The numbers are PyTorch's for the same calls, or plain. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

/* For element i the rest of i times by size, less half of size, over divide. */
static cup_tensor *ramp(cup_context *c, int ndim, const int64_t *shape, int times, int size,
                        float divide)
{
    float values[400];
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(i * times % size - size / 2) / divide;
    return cup_tensor_from(c, CUP_F32, ndim, shape, values);
}

static cup_tensor *like(cup_context *c, cup_tensor *t, int size)
{
    int64_t shape[CUP_MAX_DIMS];
    EXPECT(t != NULL);
    for (int d = 0; d < cup_tensor_ndim(t); d++)
        shape[d] = cup_tensor_size(t, d);
    return ramp(c, cup_tensor_ndim(t), shape, 1, size, 1);
}

static float dot(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    float sum = NAN;
    EXPECT_INT(cup_tensor_read(cup_sum(c, cup_mul(c, a, b), NULL, 0, false), &sum, sizeof sum),
               CUP_OK);
    return sum;
}

/* The sums of the result times a ramp, of its squares, and of the gradient times another ramp. */
static void expect_sums(cup_context *c, cup_tensor *x, cup_tensor *y, const float want[3])
{
    cup_tensor *weights = like(c, y, 5), *grad;
    EXPECT_NEAR(dot(c, y, weights), want[0], 1e-4);
    EXPECT_NEAR(dot(c, y, y), want[1], 1e-3);
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, weights), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, &x, 1, &grad), CUP_OK);
    EXPECT_NEAR(dot(c, grad, like(c, x, 7)), want[2], 1e-4);
}

static void check_pools(const char *name)
{
    cup_context *c = device(name);
    const int64_t shape[] = {2, 2, 3, 4, 3}, window[] = {2, 3, 2}, two = 2;
    cup_tensor *x = cup_require_grad(ramp(c, 5, shape, 7, 23, 4));
    cup_tensor *y = cup_max_pool3d(c, x, window, 3,
                                   CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(1, 2, 1),
                                               .padding = CUP_INTS(1, 1, 0)));
    expect_sums(c, x, y, (float[]){-14.75f, 306.25f, 82});
    const cup_avg_pool2d_options *around =
        CUP_OPTIONS(cup_avg_pool2d_options, .stride = CUP_INTS(1, 2, 2),
                    .padding = CUP_INTS(1, 1, 0), .ceil_mode = true);
    y = cup_avg_pool3d(c, x, window, 3, around);
    expect_sums(c, x, y, (float[]){6.11458254f, 75.9575729f, 9.5f});
    cup_tensor *turned = cup_permute(c, x, (int64_t[]){0, 2, 3, 4, 1}, 5);
    cup_avg_pool2d_options last = *around;
    last.channels_last = true;
    y = cup_permute(c, cup_avg_pool3d(c, turned, window, 3, &last), (int64_t[]){0, 4, 1, 2, 3}, 5);
    expect_sums(c, x, cup_copy(c, y), (float[]){6.11458254f, 75.9575729f, 9.5f});
    y = cup_avg_pool3d(c, x, &two, 1,
                       CUP_OPTIONS(cup_avg_pool2d_options, .padding = CUP_INTS(1),
                                   .count_include_pad = true));
    expect_sums(c, x, y, (float[]){3.4375f, 6.83886719f, -1.625f});
    cup_tensor *line = cup_slice(c, cup_reshape(c, x, 3, (int64_t[]){2, 6, 12}),
                                 (int64_t[]){0, 0, 0}, 3, (int64_t[]){2, 6, 7}, 3);
    y = cup_max_pool1d(c, line, 3,
                       CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(2),
                                   .padding = CUP_INTS(1)));
    EXPECT_NEAR(dot(c, y, y), 169.5, 1e-3);
    y = cup_avg_pool1d(c, cup_permute(c, line, (int64_t[]){0, 2, 1}, 3), 3,
                       CUP_OPTIONS(cup_avg_pool2d_options, .stride = CUP_INTS(2),
                                   .padding = CUP_INTS(1), .count_include_pad = true,
                                   .channels_last = true));
    EXPECT_INT(cup_tensor_size(y, 1), 4);
    EXPECT_NEAR(dot(c, y, y), 14.145833969116211, 1e-4);
    cup_context_free(c);
}

TEST(function_pools_of_one_and_three_dimensions)
{
    check_pools("cpu");
}

TEST(gpu_function_pools_of_one_and_three_dimensions)
{
    check_pools("cuda");
}

TEST(function_local_response_norm)
{
    static const float want[2][2] = {{7.50769663f, 0.131809056f}, {7.36668348f, 0.111836433f}};
    for (int i = 0; i < 2; i++) {
        cup_context *c = device("cpu");
        cup_tensor *x = ramp(c, 3, (int64_t[]){2, 6, 12}, 7, 23, 4), *grad;
        cup_tensor *part = cup_copy(c, cup_slice(c, x, (int64_t[]){0, 0, 0}, 3,
                                                 (int64_t[]){2, 6, 7}, 3));
        cup_require_grad(part);
        cup_tensor *y = cup_local_response_norm(c, part, 3 + i, 0.5, 0.75, 2);
        cup_tensor *loss = cup_sum(c, cup_mul(c, y, like(c, y, 5)), NULL, 0, false);
        EXPECT_NEAR(dot(c, y, like(c, y, 5)), want[i][0], 1e-5);
        EXPECT_INT(cup_gradients(c, loss, &part, 1, &grad), CUP_OK);
        EXPECT_NEAR(dot(c, grad, like(c, part, 7)), want[i][1], 1e-5);
        cup_context_free(c);
    }
}

static void expect_places(cup_tensor *t, const int64_t *want, int count)
{
    int64_t got[16];
    EXPECT(t && cup_tensor_count(t) == count);
    EXPECT_INT(cup_tensor_read(t, got, (size_t)count * sizeof *got), CUP_OK);
    for (int i = 0; i < count; i++)
        EXPECT_INT(got[i], want[i]);
}

static void check_searchsorted(const char *name)
{
    cup_context *c = device(name);
    cup_tensor *sorted = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){5},
                                         (float[]){-1, 2, 2, 7, NAN});
    cup_tensor *values = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 4},
                                         (float[]){2, -INFINITY, 8, NAN, -1, 6.5f, 7, INFINITY});
    expect_places(cup_searchsorted(c, sorted, values, false),
                  (int64_t[]){1, 0, 4, 4, 0, 3, 3, 4}, 8);
    expect_places(cup_searchsorted(c, sorted, values, true),
                  (int64_t[]){3, 0, 4, 5, 1, 3, 4, 4}, 8);
    sorted = cup_tensor_from(c, CUP_I64, 2, (int64_t[]){2, 3}, (int64_t[]){1, 3, 5, 0, 0, 9});
    values = cup_tensor_from(c, CUP_I64, 2, (int64_t[]){2, 2}, (int64_t[]){3, 6, 0, 9});
    expect_places(cup_searchsorted(c, sorted, values, false), (int64_t[]){1, 3, 0, 2}, 4);
    expect_places(cup_searchsorted(c, cup_zeros(c, CUP_I64, 1, (int64_t[]){0}), values, true),
                  (int64_t[]){0, 0, 0, 0}, 4);
    cup_context_free(c);
}

TEST(function_searchsorted)
{
    check_searchsorted("cpu");
}

TEST(gpu_function_searchsorted)
{
    check_searchsorted("cuda");
}

static void check_bags(const char *name)
{
    cup_context *c = device(name);
    float got[6];
    cup_tensor *table = cup_require_grad(
        cup_tensor_from(c, CUP_F32, 2, (int64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6})), *grad;
    cup_tensor *ids = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){5}, (int64_t[]){0, 2, 2, 1, 0});
    cup_tensor *ends = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){3}, (int64_t[]){2, 2, 5});
    EXPECT_INT(cup_tensor_read(cup_embedding_bag(c, table, ids, ends, false), got, sizeof got),
               CUP_OK);
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(got[i], ((float[]){6, 8, 0, 0, 9, 12})[i], 1e-6);
    cup_tensor *y = cup_embedding_bag(c, table, ids, ends, true);
    EXPECT_INT(cup_tensor_read(y, got, sizeof got), CUP_OK);
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(got[i], ((float[]){3, 4, 0, 0, 3, 4})[i], 1e-6);
    EXPECT_INT(cup_gradients(c, cup_sum(c, y, NULL, 0, false), &table, 1, &grad), CUP_OK);
    EXPECT_INT(cup_tensor_read(grad, got, sizeof got), CUP_OK);
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(got[i], ((float[]){5, 5, 2, 2, 5, 5})[i] / 6, 1e-6);
    cup_context_free(c);
}

TEST(function_embedding_bag)
{
    check_bags("cpu");
}

TEST(gpu_function_embedding_bag)
{
    check_bags("cuda");
}

static const struct {
    cup_interpolation mode;
    bool corners;
    int64_t size[2];
    float want[3];
} images[] = {
    {CUP_INTERPOLATION_NEAREST, false, {7, 9}, {20.25f, 700.3125f, 7.0f}},
    {CUP_INTERPOLATION_NEAREST, false, {3, 2}, {8.75f, 67.25f, 7.0f}},
    {CUP_INTERPOLATION_NEAREST, false, {1, 4}, {9.75f, 50.9375f, 52.0f}},
    {CUP_INTERPOLATION_BILINEAR, false, {7, 9}, {13.5694444f, 309.614717f, -8.72222222f}},
    {CUP_INTERPOLATION_BILINEAR, false, {3, 2}, {-3.70833333f, 21.3771701f, -2.75f}},
    {CUP_INTERPOLATION_BILINEAR, false, {1, 4}, {1.125f, 5.27270508f, -14.25f}},
    {CUP_INTERPOLATION_BILINEAR, true, {7, 9}, {20.375f, 345.464844f, -11.75f}},
    {CUP_INTERPOLATION_BILINEAR, true, {3, 2}, {-4.5f, 55.234375f, -9.0f}},
    {CUP_INTERPOLATION_BILINEAR, true, {1, 4}, {3.16666667f, 29.1388889f, 35.3333333f}},
    {CUP_INTERPOLATION_BICUBIC, false, {7, 9}, {17.7185634f, 481.441591f, -7.21076019f}},
    {CUP_INTERPOLATION_BICUBIC, false, {3, 2}, {-4.52462656f, 32.5840369f, -5.3159451f}},
    {CUP_INTERPOLATION_BICUBIC, false, {1, 4}, {1.20007324f, 6.91784652f, -22.0431519f}},
    {CUP_INTERPOLATION_BICUBIC, true, {7, 9}, {22.3327637f, 399.092394f, -9.76660156f}},
    {CUP_INTERPOLATION_BICUBIC, true, {3, 2}, {-4.5f, 55.234375f, -10.3125f}},
    {CUP_INTERPOLATION_BICUBIC, true, {1, 4}, {3.65740741f, 34.4372857f, 38.0925926f}},
};

static void check_interpolate(const char *name)
{
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        cup_context *c = device(name);
        cup_tensor *x = cup_require_grad(ramp(c, 4, (int64_t[]){2, 2, 4, 5}, 7, 23, 4));
        cup_tensor *y = cup_interpolate(c, x, images[i].size, 2, images[i].mode,
                                        images[i].corners);
        if (!y)
            test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
        expect_sums(c, x, y, images[i].want);
        cup_context_free(c);
    }
}

TEST(function_interpolate)
{
    check_interpolate("cpu");
}

TEST(gpu_function_interpolate)
{
    check_interpolate("cuda");
}

/* Images whose rows, or planes, are alike are lines, along the sides that change. */
TEST(function_interpolate_other_sides)
{
    static const cup_interpolation modes[] = {CUP_INTERPOLATION_NEAREST, CUP_INTERPOLATION_BILINEAR,
                                              CUP_INTERPOLATION_BICUBIC};
    cup_context *c = device("cpu");
    cup_tensor *line = cup_normal(c, CUP_F32, 3, (int64_t[]){2, 3, 5}, 0, 1);
    const int64_t one[] = {2, 3, 1, 5}, wide[] = {4, 8}, deep[] = {3, 4, 8};
    cup_tensor *image = cup_broadcast(c, cup_reshape(c, line, 4, one), 4, (int64_t[]){2, 3, 4, 5});
    cup_tensor *solid = cup_broadcast(c, cup_reshape(c, image, 5, (int64_t[]){2, 3, 1, 4, 5}), 5,
                                      (int64_t[]){2, 3, 3, 4, 5});
    for (int i = 0; i < 6; i++) {
        cup_tensor *a = cup_interpolate(c, line, (int64_t[]){8}, 1, modes[i / 2], i % 2);
        cup_tensor *b = cup_interpolate(c, image, wide, 2, modes[i / 2], i % 2);
        cup_tensor *d = cup_interpolate(c, solid, deep, 3, modes[i / 2], i % 2);
        float x[48], y[192], z[576];
        EXPECT_INT(cup_tensor_read(a, x, sizeof x), CUP_OK);
        EXPECT_INT(cup_tensor_read(b, y, sizeof y), CUP_OK);
        EXPECT_INT(cup_tensor_read(d, z, sizeof z), CUP_OK);
        for (int k = 0; k < 576; k++) {
            int n = k / 96, at = k % 8;
            EXPECT_NEAR(z[k], x[n * 8 + at], 1e-5);
            EXPECT_NEAR(y[n * 32 + k % 32], x[n * 8 + at], 1e-5);
        }
    }
    cup_context_free(c);
}

/* Positions of as many places are as they were; others are those of the image they make. */
TEST(function_interpolate_positions)
{
    cup_context *c = device("cpu");
    cup_tensor *table = cup_normal(c, CUP_F32, 2, (int64_t[]){7, 2}, 0, 1);
    float x[14], y[26];
    cup_tensor_read(table, x, sizeof x);
    const int64_t places[] = {2, 3}, size[] = {4, 3};
    cup_tensor_read(cup_interpolate_positions(c, table, 1, places, places), y, sizeof x);
    for (int i = 0; i < 14; i++)
        EXPECT_NEAR(y[i], x[i], 1e-6);
    cup_tensor_read(cup_interpolate_positions(c, table, 1, places, size), y, sizeof y);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(y[0] == x[0] && y[1] == x[1]);
    /* The first middle is a quarter before that of the first row: weights of the bicubic there. */
    double w[2] = {0, 0}, d[] = {1.75, 0.75, 0.25, 1.25};
    for (int k = 0; k < 4; k++) {
        double t = d[k];
        w[k == 3] += t <= 1 ? (1.25 * t - 2.25) * t * t + 1
                            : ((-0.75 * t + 3.75) * t - 6) * t + 3;
    }
    for (int i = 2; i < 8; i++)
        EXPECT_NEAR(y[i], w[0] * x[i] + w[1] * x[i + 6], 1e-5);
    cup_context_free(c);
}

static void expect_refused(cup_context *c, cup_tensor *y, const char *words)
{
    EXPECT(!y);
    if (!strstr(cup_error_text(c), words))
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    cup_error_clear(c);
}

TEST(function_pool_refusals)
{
    cup_context *c = device("cpu");
    cup_tensor *x = cup_zeros(c, CUP_F32, 3, (int64_t[]){1, 2, 4});
    expect_refused(c, cup_max_pool3d(c, x, (int64_t[]){2}, 1, NULL), "it must have 5");
    expect_refused(c, cup_max_pool1d(c, x, 2, CUP_OPTIONS(cup_max_pool2d_options,
                                                          .stride = CUP_INTS(1, 2))),
                   "stride has 2 numbers");
    expect_refused(c, cup_avg_pool1d(c, x, 0, NULL), "window");
    expect_refused(c, cup_local_response_norm(c, x, 0, 1, 1, 1), "0 channels");
    expect_refused(c, cup_searchsorted(c, x, cup_zeros(c, CUP_F32, 1, (int64_t[]){2}), false),
                   "leading dimensions");
    cup_tensor *flat = cup_zeros(c, CUP_F32, 2, (int64_t[]){5, 4});
    expect_refused(c, cup_interpolate(c, flat, (int64_t[]){2}, 1, CUP_INTERPOLATION_NEAREST, false),
                   "floats [N,C,..]");
    expect_refused(c, cup_interpolate(c, x, (int64_t[]){2, 2}, 2, CUP_INTERPOLATION_NEAREST, false),
                   "one number or as many");
    expect_refused(c, cup_interpolate_positions(c, flat, 2, (int64_t[]){2, 2}, (int64_t[]){3, 3}),
                   "[before + H W,width]");
    expect_refused(c, cup_embedding_bag(c, x, x, x, false), "ids must be [n]");
    cup_context_free(c);
}
