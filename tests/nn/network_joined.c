/* Networks compute some neighbouring layers at once: the results and the gradients are those of
 * one after the other. */
#include <stdio.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { IMAGES = 3, SIDE = 12, CHANNELS = 8, MOST = 2000 };

static const char text[] = "conv 5 kernel=2 stride=2 padding=0\nconv 8 nobias\nbatchnorm\nrelu\n"
                           "residual\nconv same nobias\nbatchnorm\nend\nrelu\n"
                           "residual\nconv 8 kernel=1\nbatchnorm\nshortcut\n"
                           "conv 8 kernel=1 nobias\nbatchnorm\nend\nrelu\n"
                           "residual\nlinear 16\ngelu\nlinear 8\nscale 0.5\nend\n"
                           "residual\nbatchnorm\nend\nglobalpool\nlinear classes\n";

static cup_tensor *window(cup_context *c, cup_parameters *list, const char *weight,
                          const char *bias, cup_tensor *x, int64_t padding,
                          int64_t stride)
{
    const int64_t first[] = {0, 3, 1, 2}, last[] = {0, 2, 3, 1};
    cup_tensor *y = cup_conv2d(c, cup_permute(c, x, first, 4), cup_parameters_find(list, weight),
                               bias ? cup_parameters_find(list, bias) : NULL,
                               CUP_OPTIONS(cup_conv2d_options, .padding = CUP_INTS(padding),
                                           .stride = CUP_INTS(stride)));
    return cup_permute(c, y, last, 4);
}

static cup_tensor *norm(cup_context *c, cup_parameters *list, int number, cup_tensor *x)
{
    char weight[40], bias[40];
    snprintf(weight, sizeof weight, "batchnorm%d.weight", number);
    snprintf(bias, sizeof bias, "batchnorm%d.bias", number);
    return cup_batchnorm(c, x, cup_parameters_find(list, weight), cup_parameters_find(list, bias),
                         NULL, NULL, -1, CUP_OPTIONS(cup_batchnorm_options, .train = true));
}

static cup_tensor *linear(cup_context *c, cup_parameters *list, int number, cup_tensor *x)
{
    char weight[40], bias[40];
    snprintf(weight, sizeof weight, "linear%d.weight", number);
    snprintf(bias, sizeof bias, "linear%d.bias", number);
    return cup_linear(c, x, cup_parameters_find(list, weight), cup_parameters_find(list, bias));
}

static cup_tensor *by_hand(cup_context *c, cup_parameters *list, cup_tensor *x)
{
    x = window(c, list, "conv1.weight", "conv1.bias", x, 0, 2);
    x = cup_relu(c, norm(c, list, 1, window(c, list, "conv2.weight", NULL, x, 1, 1)));
    cup_tensor *y = norm(c, list, 2, window(c, list, "conv3.weight", NULL, x, 1, 1));
    x = cup_relu(c, cup_add(c, x, y));
    cup_tensor *body = norm(c, list, 3, window(c, list, "conv4.weight", "conv4.bias", x, 0, 1));
    x = norm(c, list, 4, window(c, list, "conv5.weight", NULL, x, 0, 1));
    x = cup_relu(c, cup_add(c, body, x));
    cup_tensor *wide = linear(c, list, 2, cup_gelu(c, linear(c, list, 1, x)));
    x = cup_add(c, x, cup_mul(c, wide, cup_parameters_find(list, "scale1")));
    x = cup_add(c, x, norm(c, list, 5, x));
    return linear(c, list, 3, cup_mean(c, x, (int64_t[]){1, 2}, 2, false));
}

static void expect_same(cup_tensor *got, cup_tensor *want)
{
    static float a[MOST], b[MOST];
    EXPECT(got && want && cup_tensor_count(got) == cup_tensor_count(want));
    size_t bytes = (size_t)cup_tensor_count(want) * sizeof *a;
    EXPECT(bytes <= sizeof a);
    EXPECT_INT(cup_tensor_read(got, a, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(want, b, bytes), CUP_OK);
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        EXPECT_NEAR(a[i], b[i], 2e-5);
}

static cup_tensor *loss_of(cup_context *c, cup_tensor *scores)
{
    return cup_cross_entropy(c, scores,
                             cup_tensor_from(c, CUP_I64, 1, (int64_t[]){IMAGES},
                                             (int64_t[]){1, 4, 2}),
                             -1, NULL);
}

static const char *const names[] = {
    "conv1.weight",      "conv1.bias",      "conv2.weight",      "conv3.weight",
    "conv4.weight",      "conv4.bias",      "conv5.weight",
    "batchnorm1.weight", "batchnorm1.bias", "batchnorm2.weight", "batchnorm3.bias",
    "batchnorm4.weight", "batchnorm4.bias", "batchnorm5.weight", "linear1.weight", "linear1.bias",
    "linear2.weight",    "linear2.bias",    "scale1",            "linear3.weight"};
enum { NAMES = sizeof names / sizeof *names };

TEST(network_joins_layers)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 7));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_network *n = cup_network_new(c, list, text,
                                     CUP_OPTIONS(cup_network_sizes, .height = SIDE, .width = SIDE,
                                                 .channels = 5, .classes = 6));
    EXPECT_TEXT(cup_error_text(c), "");
    cup_parameters_training(list, true);
    cup_tensor *trained[NAMES], *gradients[2][NAMES];
    for (int i = 0; i < NAMES; i++)
        trained[i] = cup_require_grad(cup_parameters_find(list, names[i]));
    EXPECT_TEXT(cup_error_text(c), "");
    cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){IMAGES, SIDE, SIDE, 5}, 0, 1);
    cup_tensor *got = cup_network_call(n, x);
    EXPECT_INT(cup_gradients(c, loss_of(c, got), trained, NAMES, gradients[0]), CUP_OK);
    cup_tensor *want = by_hand(c, list, x);
    EXPECT_INT(cup_gradients(c, loss_of(c, want), trained, NAMES, gradients[1]), CUP_OK);
    expect_same(got, want);
    for (int i = 0; i < NAMES; i++)
        expect_same(gradients[0][i], gradients[1][i]);
    cup_network_free(n);
    cup_parameters_free(list);
    cup_context_free(c);
}
