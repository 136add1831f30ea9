/* Batchnorm that became part of the convolution before it. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "nn/network.h"
#include "tensor/tensor.h"

enum { IMAGES = 3, SIDE = 12, CLASSES = 6, MOST = 20000 };

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 11));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

/* Up to a part of the largest. */
static void expect_near(cup_tensor *got, cup_tensor *want, double part)
{
    static float a[MOST], b[MOST];
    cup_context *c = cup_tensor_context(want);
    size_t bytes = (size_t)cup_tensor_count(want) * sizeof *a;
    float most = 0;
    EXPECT(got && cup_tensor_count(got) == cup_tensor_count(want) && bytes <= sizeof a && bytes);
    EXPECT_INT(cup_tensor_read(cup_copy(c, cup_cast(c, got, CUP_F32)), a, bytes), CUP_OK);
    EXPECT_INT(cup_tensor_read(cup_copy(c, cup_cast(c, want, CUP_F32)), b, bytes), CUP_OK);
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        most = fmaxf(most, fabsf(b[i]));
    EXPECT(most > 0);
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        EXPECT_NEAR(a[i], b[i], part * (double)most);
}

static void check_layers(const char *name, cup_dtype dtype, double part)
{
    for (int kind = 0; kind < 4; kind++) {
        cup_context *c = device(name);
        cup_parameters *list = cup_parameters_new(c, dtype);
        int groups = kind == 1 ? 2 : 1;
        int64_t kernel = kind == 2 ? 1 : 3;
        cup_grad_recording(c, false);
        cup_conv2d_layer conv;
        cup_batchnorm_layer norm;
        cup_conv2d_layer_new(&conv, list, "conv", 16, 24, &kernel, 1,
                             CUP_OPTIONS(cup_conv2d_layer_options, .groups = groups,
                                         .no_bias = kind % 2, .padding = CUP_INTS(1)));
        cup_batchnorm_layer_new(&norm, list, "norm", 24,
                                CUP_OPTIONS(cup_norm_layer_options, .no_bias = kind == 3));
        cup_tensor *x = cup_normal(c, dtype, 4, (int64_t[]){2, 16, 7, 6}, 0.5, 1);
        const cup_conv2d_layer before = conv;
        if (conv.bias)
            cup_copy_into(c, conv.bias, cup_normal(c, dtype, 1, (int64_t[]){24}, 0, 1));
        cup_copy_into(c, norm.weight, cup_normal(c, dtype, 1, (int64_t[]){24}, 1, 1));
        if (norm.bias)
            cup_copy_into(c, norm.bias, cup_normal(c, dtype, 1, (int64_t[]){24}, 0, 1));
        cup_parameters_training(list, true);
        for (int i = 0; i < 3; i++)
            cup_batchnorm_layer_call(&norm, cup_conv2d_layer_call(&conv, x));
        cup_parameters_training(list, false);
        cup_tensor *want = cup_batchnorm_layer_call(&norm, cup_conv2d_layer_call(&conv, x));
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_batchnorm_layer_fold(&norm, &conv), CUP_OK);
        EXPECT(conv.weight != before.weight && conv.bias && conv.bias != before.bias);
        expect_near(cup_conv2d_layer_call(&conv, x), want, part);
        conv.activation = CUP_ACTIVATION_RELU;
        cup_tensor *residual = cup_normal(c, dtype, 4, want->shape, 0, 1);
        expect_near(cup_conv2d_layer_join(&conv, x, residual),
                    cup_relu(c, cup_add(c, want, residual)), part);
        EXPECT_INT(cup_batchnorm_layer_fold(&norm, &conv), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "no activation");
        cup_error_clear(c);
        cup_tensor_free(conv.weight);
        cup_tensor_free(conv.bias);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

TEST(fold_of_layers)
{
    check_layers("cpu", CUP_F32, 1e-5);
    check_layers("cpu", CUP_F64, 1e-6);
    check_layers("cpu", CUP_BF16, 0.03);
    EXPECT_INT(cup_batchnorm_layer_fold(NULL, NULL), CUP_ARGUMENT);
}

TEST(gpu_fold_of_layers)
{
    check_layers("cuda", CUP_F32, 1e-3);
    check_layers("cuda", CUP_BF16, 0.03);
}

static const char text[] = "conv 16 kernel=2 stride=2 padding=0\nbatchnorm\nconv 32 nobias\n"
                           "batchnorm\nrelu\nresidual\nconv same nobias\nbatchnorm\nend\nrelu\n"
                           "residual\nconv same\nbatchnorm\nrelu\nconv 64 kernel=1\nbatchnorm\n"
                           "shortcut\nconv 64 kernel=1 nobias\nbatchnorm\nend\nrelu\n"
                           "conv same groups=4\nbatchnorm\ngelu\nconv same\nbatchnorm\nsilu\n"
                           "residual\nbatchnorm\nend\nconv same\nbatchnorm\ntanh\nconv 32\nrelu\n"
                           "globalpool\nlinear classes\n";

static int steps_of(const cup_network *n, cup__step_kind kind)
{
    int count = 0;
    for (int i = 0; i < n->count; i++)
        count += n->steps[i].kind == kind;
    return count;
}

static void check_network(const char *name, const char *words, int kept, cup_dtype dtype,
                          double part)
{
    cup_context *c = device(name);
    cup_parameters *list = cup_parameters_new(c, dtype);
    cup_network *n = cup_network_new(c, list, words,
                                     CUP_OPTIONS(cup_network_sizes, .height = SIDE, .width = SIDE,
                                                 .channels = 3, .classes = CLASSES));
    cup_tensor *x = cup_normal(c, dtype, 4, (int64_t[]){IMAGES, SIDE, SIDE, 3}, 0.3, 1);
    cup_parameters_training(list, true);
    for (int i = 0; i < 3; i++)
        cup_network_call(n, x);
    cup_parameters_training(list, false);
    cup_tensor *want = cup_network_call(n, x);
    EXPECT_TEXT(cup_error_text(c), "");
    for (int twice = 0; twice < 2; twice++) {
        EXPECT_INT(cup_network_fold(n), CUP_OK);
        EXPECT_INT(steps_of(n, CUP__STEP_BATCHNORM), kept);
        cup_grad_recording(c, twice == 0);
        expect_near(cup_network_call(n, x), want, part);
    }
    cup_network_free(n);
    cup_parameters_free(list);
    cup_context_free(c);
}

static void check_known(const char *device_name, cup_dtype dtype, double part)
{
    char words[4096];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_network_text(c, "resnet50", SIDE, SIDE, words, sizeof words), CUP_OK);
    cup_context_free(c);
    check_network(device_name, words, 0, dtype, part);
}

TEST(fold_of_networks)
{
    check_network("cpu", text, 1, CUP_F32, 2e-5);
    check_network("cpu", text, 1, CUP_F64, 1e-6);
    check_known("cpu", CUP_F32, 1e-4);
    EXPECT_INT(cup_network_fold(NULL), CUP_ARGUMENT);
}

TEST(gpu_fold_of_networks)
{
    check_network("cuda", text, 1, CUP_F32, 2e-3);
    check_network("cuda", text, 1, CUP_BF16, 0.06);
    check_known("cuda", CUP_BF16, 0.1);
}
