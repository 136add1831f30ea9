/* Recurrent layers; the numbers are PyTorch's, in double, for the same weights. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_tensor *ramp(cup_context *c, int ndim, const int64_t *shape, int times, int size,
                        float divide)
{
    float values[200];
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(i * times % size - size / 2) / divide;
    return cup_tensor_from(c, CUP_F32, ndim, shape, values);
}

#define RAMP(c, times, size, divide, ...)                                                          \
    ramp(c, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}, times,   \
         size, divide)

static float number(cup_tensor *t)
{
    float value = NAN;
    EXPECT_INT(cup_tensor_read(t, &value, sizeof value), CUP_OK);
    return value;
}

static float times_ramp(cup_context *c, cup_tensor *t, int size)
{
    int64_t shape[CUP_MAX_DIMS];
    EXPECT(t != NULL);
    for (int d = 0; d < cup_tensor_ndim(t); d++)
        shape[d] = cup_tensor_size(t, d);
    cup_tensor *weights = ramp(c, cup_tensor_ndim(t), shape, 1, size, 1);
    return number(cup_sum(c, cup_mul(c, t, weights), NULL, 0, false));
}

/* The loss and the squares of the last h; gradients of x, h, the cell and the weights. */
typedef struct example {
    int gates, count;
    float loss, last, slopes[7];
} example;

static const example examples[] = {
    {4, 4, 1.08181661f, 0.218078433f,
     {-1.77636045f, 0.265533522f, -1.99125849f, 2.06083506f, 0.861265177f, 4.83477543f,
      4.83477543f}},
    {4, 2, 0.743117566f, 0.114822219f,
     {-2.36477487f, 1.28239241f, -1.66140302f, 0.642014752f, 0.0503131802f}},
    {3, 4, 0.344186232f, 0.885415738f,
     {-2.09404626f, -3.5897851f, 0, 7.51984027f, -4.42041572f, -14.4329008f, -2.41625461f}},
    {3, 2, -0.816906156f, 0.555908335f,
     {-2.69629136f, -3.54664923f, 0, 2.69754387f, -4.83798428f}},
};

static void check_example(cup_context *c, const example *e)
{
    int64_t all = 5 * e->gates;
    cup_tensor *t[] = {RAMP(c, 5, 13, 8, 4, 2, 3), RAMP(c, 3, 7, 8, 2, 5), RAMP(c, 2, 9, 8, 2, 5),
                       RAMP(c, 7, 23, 16, all, 3), RAMP(c, 5, 19, 16, all, 5),
                       RAMP(c, 3, 11, 16, all), RAMP(c, 2, 7, 16, all)};
    cup_tensor *out[3], *grads[7];
    for (int i = 0; i < 7; i++)
        cup_require_grad(t[i]);
    cup_status status = e->gates == 4 ? cup_lstm(c, t[0], t[1], t[2], t + 3, e->count, out)
                                      : cup_gru(c, t[0], t[1], t + 3, e->count, out);
    if (status != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    EXPECT_NEAR(number(cup_sum(c, cup_square(c, out[1]), NULL, 0, false)), e->last, 1e-5);
    cup_tensor *loss = cup_sum(c, cup_mul(c, out[0], RAMP(c, 1, 5, 1, 4, 2, 5)), NULL, 0, false);
    if (e->gates == 4)
        loss = cup_add(c, loss, cup_sum(c, out[2], NULL, 0, false));
    EXPECT_NEAR(number(loss), e->loss, 1e-5);
    cup_tensor *leaves[7];
    int count = 0, number_of[7];
    for (int i = 0; i < 3 + e->count; i++)
        if (i != 2 || e->gates == 4) {
            number_of[count] = i;
            leaves[count++] = t[i];
        }
    EXPECT_INT(cup_gradients(c, loss, leaves, count, grads), CUP_OK);
    for (int i = 0; i < count; i++)
        EXPECT_NEAR(times_ramp(c, grads[i], 7), e->slopes[number_of[i]], 5e-5);
}

static void check_all(const char *name)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name));
        if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
            test_skip("no GPU");
        check_example(c, &examples[i]);
        cup_context_free(c);
    }
}

TEST(function_recurrent_layers)
{
    check_all("cpu");
}

TEST(gpu_function_recurrent_layers)
{
    check_all("cuda");
}

TEST(function_recurrent_refusals)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = RAMP(c, 1, 3, 1, 2, 1, 3), *h = RAMP(c, 1, 3, 1, 1, 4), *out[3] = {x, x, x};
    cup_tensor *weights[] = {RAMP(c, 1, 3, 1, 12, 3), RAMP(c, 1, 3, 1, 12, 4)};
    EXPECT_INT(cup_lstm(c, x, h, h, weights, 2, out), CUP_SHAPE);
    EXPECT(strstr(cup_error_text(c), "[4 H,I]") && !out[0] && !out[1] && !out[2]);
    cup_error_clear(c);
    EXPECT_INT(cup_gru(c, x, h, weights, 3, out), CUP_SHAPE);
    cup_error_clear(c);
    EXPECT_INT(cup_gru(c, x, h, weights, 2, out), CUP_OK);
    cup_context_free(c);
}
